"""A shard that is being read: an open file (or a mapped image) with its leaves, which were compared with the root."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Any, Optional, Tuple

from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.read import mapping
from hyperpod_kit.errors import CheckpointError, DigestMismatch

PAGE = 4096


class Mapped:
    """A shard that lies in memory: chunks are compared and handed on where they are."""

    align = 1

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.size = len(view)

    def read_into(self, view: memoryview, offset: int) -> int:
        part = self.view[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Do nothing: the mapping belongs to whoever made it."""


Source = Any
"""`repository.store.base.Reader`: size, align, read_into(view, offset), close()."""


class Buffer:
    """Page-aligned private memory of `size` bytes; in huge pages where the system has them."""

    def __init__(self, size: int) -> None:
        self._mapping = mmap.mmap(-1, max(size, PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._mapping)

    def fault_in(self) -> None:
        """Have the kernel allocate and clear the pages now, without the interpreter's lock."""
        mapping.fault_in_private((ctypes.c_char * len(self.view)).from_buffer(self.view))


def round_up_to_page(value: int) -> int:
    """Return the next multiple of PAGE."""
    return -(-value // PAGE) * PAGE


class Shard:
    """An open shard of which the leaves are proved. Closes nothing: the source belongs to the caller.

    Raises DigestMismatch when the leaves are not those of `root`, CheckpointError when the size is wrong or the file
    ends early, DigestUnavailable, OSError.
    """

    def __init__(self, source: Source, size: int, root: str, *, name: str, chunk: int = digest.CHUNK) -> None:
        self.source = source
        self.size = size
        self.name = name
        self.chunk = chunk
        self._alg = digest.algorithm(root.partition(":")[0])
        if source.size != size:
            raise CheckpointError(f"{name} has {source.size} bytes, expected {size}")
        try:
            self.data_end, self.chunks = digest.split_size_into_data_and_leaf_count(size, chunk)
        except ValueError as err:
            raise CheckpointError(f"{name}: {err}") from None
        begin = self.data_end // PAGE * PAGE
        tail = Buffer(round_up_to_page(size - begin))
        self._leaves = bytes(self.read_unverified_into(tail.view, begin, size)[self.data_end - begin :])
        actual_root = digest.root_digest(self._alg, self._leaves, size)
        if actual_root != root:
            raise DigestMismatch(f"{name} (digests)", root, actual_root)

    def chunk_bounds(self, index: int) -> Tuple[int, int]:
        """[begin, end) of a chunk; the leaves belong to none."""
        return index * self.chunk, min((index + 1) * self.chunk, self.data_end)

    def stored_leaf(self, index: int) -> bytes:
        return self._leaves[index * digest.LEAF_BYTES : (index + 1) * digest.LEAF_BYTES]

    def fetch_unverified_chunk(self, index: int, buffer: Optional[Buffer]) -> memoryview:
        """Return a chunk's bytes, not verified yet: in the buffer, or in place when the source is mapped."""
        begin, end = self.chunk_bounds(index)
        if isinstance(self.source, Mapped) or buffer is None:
            return memoryview(self.source.view)[begin:end]
        return self.read_unverified_into(buffer.view, begin, end)

    def verify_chunk(self, index: int, view: memoryview) -> None:
        """Raise DigestMismatch, naming the bytes, unless the view is this chunk."""
        actual_leaf = self._alg.leaf(view)
        if actual_leaf != self.stored_leaf(index):
            begin, end = self.chunk_bounds(index)
            raise DigestMismatch(
                f"{self.name} bytes {begin}..{end}",
                f"{self._alg.name}:{self.stored_leaf(index).hex()}",
                f"{self._alg.name}:{actual_leaf.hex()}",
            )

    def read_verified(self, begin: int, end: int) -> bytes:
        """Return bytes [begin, end) of the file, verified by whole chunks. For what is small: a header."""
        parts = []
        buffer = Buffer(round_up_to_page(self.chunk))
        for index in range(begin // self.chunk, -(-end // self.chunk)):
            view = self.fetch_unverified_chunk(index, buffer)
            self.verify_chunk(index, view)
            first, last = self.chunk_bounds(index)
            parts.append(bytes(view[max(begin, first) - first : min(end, last) - first]))
        return b"".join(parts)

    def read_unverified_into(self, view: memoryview, begin: int, end: int) -> memoryview:
        """Read [begin, end) into the view, not verified yet, and return the part that was filled.

        `begin` is a multiple of PAGE, and the view has room up to the next one after `end`.
        """
        if self.source.align > 1:
            limit = round_up_to_page(end - begin)
        else:
            limit = end - begin
        done = 0
        while done < end - begin:
            count = self.source.read_into(view[done:limit], begin + done)
            if count <= 0:
                raise CheckpointError(f"{self.name} ends at byte {begin + done}")
            done += count
        return view[: end - begin]
