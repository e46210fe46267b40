"""Where the bytes of an imported tensor come from: a tensor that is there, or a place in a file, read once and in
order. What is read from a file is compared with its check sum where one was written."""

from __future__ import annotations

import os
import stat
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.transfer.load import bytes_of, view_of
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import source_owner

_MAX_OPEN = 64
"""Files that are open at a time: a checkpoint of many ranks has thousands."""


class ByteSource(Protocol):
    """The bytes of one tensor, or of one box of it."""

    def read(self, view: memoryview, at: int) -> None:
        """Fill `view` with the bytes from `at` on. Called for the bytes from the first to the last, each once. Raise
        CheckpointError, OSError."""


class ImportedPiece(NamedTuple):
    """A tensor, or a box of one, and its bytes."""

    spec: TensorSpec
    source: ByteSource


class TensorBytes:
    """Those of a tensor, which is made contiguous while it is read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._flat: memoryview | None = None

    def read(self, view: memoryview, at: int) -> None:
        """See ByteSource."""
        if self._flat is None:
            tensor = self._tensor.detach().contiguous().resolve_conj().resolve_neg()
            self._flat = view_of(bytes_of(tensor))
        view[:] = self._flat[at : at + len(view)]
        if at + len(view) == len(self._flat):
            self._flat = None


class ImportedFiles:
    """Files that are read from, few of them open at a time."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def fill(self, path: Path, view: memoryview, at: int) -> None:
        """Fill `view` with the file's bytes from `at` on. Raise CheckpointError when it ends before, OSError."""
        fd = self._open_or_reuse_descriptor(path)
        done = 0
        while done < len(view):
            count = os.preadv(fd, [view[done:]], at + done)
            if not count:
                raise CheckpointError(f"{path} ends after {at + done} bytes", hint="copy it again")
            done += count

    def read_bytes(self, path: Path, at: int, size: int) -> bytearray:
        """Return `size` bytes of the file from `at` on. Raise as `fill`."""
        data = bytearray(size)
        self.fill(path, memoryview(data), at)
        return data

    def _open_or_reuse_descriptor(self, path: Path) -> int:
        if path not in self._open:
            while len(self._open) >= _MAX_OPEN:
                os.close(self._open.popitem(last=False)[1])
            self._open[path] = open_regular_file(path)
        self._open.move_to_end(path)
        return self._open[path]

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])


def read_small_file(path: Path, limit: int) -> bytes:
    """Return the content of a file. Raise CheckpointError for what is no regular file or has more than `limit`
    bytes, OSError."""
    fd = open_regular_file(path)
    with open(fd, "rb") as file:
        # Python makes room for as much as it is asked for, whatever the file has.
        data = file.read(min(os.fstat(fd).st_size, limit) + 1)
    if len(data) > limit:
        raise CheckpointError(f"{path} has more than {limit} bytes", hint="copy it again")
    return data


@contextmanager
def descriptor_path(path: Path) -> Iterator[str]:
    """Yield a path of the file that lies there now, for a library that opens it itself. Raise as
    `open_regular_file`."""
    fd = open_regular_file(path)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def open_regular_file(path: Path) -> int:
    """Return a descriptor of a regular file. Links are followed: a cache of Hugging Face is made of them. Raise
    CheckpointError for anything else, OSError."""
    with source_owner.thread_acting_as_source_owner(str(path)):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CheckpointError(f"{path} is not a file", hint="copy it again")
    return fd


@contextmanager
def closing_imported_files() -> Iterator[ImportedFiles]:
    """Yield an ImportedFiles whose files are closed at the end."""
    files = ImportedFiles()
    try:
        yield files
    finally:
        files.close()


class FileBytes:
    """Those at a place in a file; `crc` is their CRC-32, None where none was written."""

    def __init__(self, files: ImportedFiles, path: Path, begin: int, size: int, crc: int | None = None) -> None:
        self._files, self._path, self._begin, self._size, self._crc = files, path, begin, size, crc
        self._sum = 0

    def read(self, view: memoryview, at: int) -> None:
        """See ByteSource."""
        self._files.fill(self._path, view, self._begin + at)
        if self._crc is None:
            return
        if at == 0:
            self._sum = 0
        self._sum = zlib.crc32(view, self._sum)
        if at + len(view) == self._size and self._sum != self._crc:
            raise CheckpointError(
                f"{self._path} is damaged: Bad CRC-32 of the {self._size} bytes from {self._begin} on",
                hint="copy it again, or take another checkpoint",
            )
