"""What `torch.save` wrote, read with care: nothing of a pickle is run, and each check sum that is there is compared.

Such a file is a zip: `data.pkl` says which tensors there are, and each storage is an entry of its own, uncompressed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.convert.files.byte_sources import (
    ByteSource,
    FileBytes,
    ImportedFiles,
    TensorBytes,
    descriptor_path,
)
from hyperpod_kit.checkpoint.convert.files.imported_tree import ImportedTree
from hyperpod_kit.checkpoint.convert.files.new_root import RankPart
from hyperpod_kit.checkpoint.convert.files.restricted_pickle import UNPICKLE_ERRORS, RestrictedUnpickler
from hyperpod_kit.errors import Absent, CheckpointError, UsageError, first_line

_SLICE = 1 << 20
_LOCAL_HEADER = struct.Struct("<26xHH")
_DAMAGED = (zipfile.BadZipFile, zlib.error, AssertionError, *UNPICKLE_ERRORS)


class StoredTensor(NamedTuple):
    """A tensor as `torch.save` laid it down: its bytes lie at `begin` of the file, its items `stride` apart. `crc`: of
    the bytes, None where none was written."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    begin: int
    size: int
    crc: int | None

    def source(self, files: ImportedFiles, path: Path) -> ByteSource:
        """Return a source of the bytes in the order of the dimensions. A tensor whose items lie otherwise is held in
        memory while it is read."""
        stored = FileBytes(files, path, self.begin, self.size, self.crc)
        if _is_contiguous(self):
            return stored
        return _ReorderedBytes(stored, self)


def verify_checksums_if_present(path: Path, hint: str) -> bool:
    """Compare the check sum of each entry of the file and return True; return False where torch wrote none.
    Raise CheckpointError, with `hint`."""
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file", hint=hint)
    with damage_as_checkpoint_error(path, hint), descriptor_path(path) as open_path, zipfile.ZipFile(
        open_path
    ) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise CheckpointError(f"{path} is compressed, which torch.save never does", hint=hint)
        if not any(entry.CRC for entry in entries):
            return False
        for entry in entries:
            with archive.open(entry) as data:
                while data.read(_SLICE):
                    pass
    return True


@contextlib.contextmanager
def damage_as_checkpoint_error(path: Path, hint: str) -> Iterator[None]:
    """A context that raises as CheckpointError what reading a damaged file ends in; pickle.UnpicklingError
    stays."""
    try:
        yield
        return
    except (CheckpointError, pickle.UnpicklingError):
        raise
    except _DAMAGED as err:
        reason = first_line(err)
    except OSError as err:
        if err.errno != errno.EINVAL:  # a place before the file's beginning, or a mapping of nothing
            raise
        reason = first_line(err)
    raise CheckpointError(
        f"{path} is damaged, or not as torch.save writes files by default: {reason}; {path.stat().st_size} bytes",
        hint=hint,
    )


def locate_tensor(files: ImportedFiles, path: Path, begin: int, size: int) -> StoredTensor:
    """Return the one tensor of what lies there, whose bytes are not read yet. Raise CheckpointError, also where
    it is none, or not in order."""
    try:
        with zipfile.ZipFile(_Window(files, path, begin, size)) as archive:
            listed = archive.infolist()
        entries = {entry.filename.partition("/")[2]: entry for entry in listed}
        has_checksums = any(entry.CRC for entry in listed)
        archive_entries = _EmbeddedZip(files, path, begin, begin + size, has_checksums)
        if "byteorder" in entries and archive_entries.read(entries["byteorder"]) != b"little":
            raise ValueError("its byte order differs")
        pickled = _TensorPickle(io.BytesIO(archive_entries.read(entries["data.pkl"]))).load()
        if not isinstance(pickled, _PickledTensor):
            raise ValueError("it is not a tensor")
        entry = entries[f"data/{pickled.key}"]
        nbytes = _item_count(pickled.shape) * pickled.dtype.itemsize
        if pickled.offset or entry.file_size != nbytes:
            raise ValueError(f"a tensor of {nbytes} bytes in an entry of {entry.file_size}")
        if not _is_contiguous(pickled) and 1 + sum(map(_last_offset, pickled.shape, pickled.stride)) != _item_count(
            pickled.shape
        ):
            raise ValueError("its items do not match the stored bytes")
        data_begin = archive_entries.data_offset(entry)
    except _DAMAGED as err:
        raise CheckpointError(
            f"{path} is damaged, or not as torch.save writes tensors: {err}; {size} bytes from {begin} on",
            hint="copy it again, or take another checkpoint",
        ) from None
    crc = None
    if has_checksums:
        crc = entry.CRC
    return StoredTensor(pickled.dtype, pickled.shape, pickled.stride, data_begin, nbytes, crc)


class _EmbeddedZip(NamedTuple):
    """Entries of a zip that lies at `begin` of a file; `has_checksums`: whether they have check sums."""

    files: ImportedFiles
    path: Path
    begin: int
    end: int
    has_checksums: bool

    def data_offset(self, entry: zipfile.ZipInfo) -> int:
        """Return where the bytes of an entry begin in the file. Raise ValueError."""
        at: int = self.begin + entry.header_offset
        if not self.begin <= at <= self.end - _LOCAL_HEADER.size:
            raise ValueError(f"{entry.filename} lies outside of it")
        at += _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(self.files.read_bytes(self.path, at, _LOCAL_HEADER.size)))
        if entry.compress_type != zipfile.ZIP_STORED or at + entry.file_size > self.end:
            raise ValueError(f"{entry.filename} is compressed, or ends behind it")
        return at

    def read(self, entry: zipfile.ZipInfo) -> bytes:
        """Return the content of an entry, compared with its check sum. Raise ValueError."""
        data = bytes(self.files.read_bytes(self.path, self.data_offset(entry), entry.file_size))
        if self.has_checksums and zlib.crc32(data) != entry.CRC:
            raise ValueError(f"Bad CRC-32 of {entry.filename}")
        return data


def load_value(files: ImportedFiles, path: Path, begin: int, size: int) -> Any:
    """What lies there, as torch.load(weights_only=True) reads it; its check sums are compared. Raises CheckpointError,
    pickle.UnpicklingError for classes that are not loaded so."""
    data = io.BytesIO(files.read_bytes(path, begin, size))
    try:
        with zipfile.ZipFile(data) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise zipfile.BadZipFile("it is compressed, which torch.save never does")
            bad = None
            if any(entry.CRC for entry in entries):
                bad = archive.testzip()
        if bad is not None:
            raise zipfile.BadZipFile(f"Bad CRC-32 of {bad}")
        data.seek(0)
        return torch.load(data, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise
    except _DAMAGED as err:
        raise CheckpointError(
            f"{path} is damaged: {first_line(err)}; {size} bytes from {begin} on",
            hint="copy it again, or take another checkpoint",
        ) from None


def refused_class(err: Exception) -> str:
    """Return which class torch.load(weights_only=True) refused, from its error."""
    return next((line.strip() for line in str(err).splitlines() if "GLOBAL" in line), str(err))


class _PickledTensor(NamedTuple):
    dtype: torch.dtype
    key: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _ReorderedBytes:
    """The items of a tensor in the order of its dimensions; see ByteSource."""

    def __init__(self, stored: FileBytes, tensor: StoredTensor) -> None:
        self._stored, self._tensor = stored, tensor
        self._ordered: TensorBytes | None = None

    def read(self, view: memoryview, at: int) -> None:
        if self._ordered is None:
            raw = bytearray(self._tensor.size)
            self._stored.read(memoryview(raw), 0)
            items = torch.frombuffer(raw, dtype=self._tensor.dtype)
            self._ordered = TensorBytes(items.as_strided(self._tensor.shape, self._tensor.stride))
        self._ordered.read(view, at)
        if at + len(view) == self._tensor.size:
            self._ordered = None


def _is_contiguous(tensor: _PickledTensor | StoredTensor) -> bool:
    expected = 1
    for extent, step in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if extent != 1 and step != expected:
            return _item_count(tensor.shape) == 0
        expected *= extent
    return True


def _last_offset(extent: int, step: int) -> int:
    """Return where the last item of a dimension lies, counted from its first one."""
    if type(step) is not int or step < 0:
        raise ValueError(f"a stride is {step!r}")
    return (extent - 1) * step


def _item_count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        if type(extent) is not int or extent < 0:
            raise ValueError(f"an extent is {extent!r}")
        count *= extent
    return count


class _TensorPickle(RestrictedUnpickler):
    """A pickle in which there may be a tensor and nothing else: what it names is not called, but noted."""

    def find_class(self, module: str, name: str) -> Any:
        """See Unpickler."""
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3")):
            return _record_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return None
        kind = None
        if module == "torch":
            kind = getattr(torch, name, None)
        if isinstance(kind, torch.dtype):
            return kind
        if isinstance(kind, type) and issubclass(kind, torch.storage._LegacyStorage):
            return torch.serialization.StorageType(name).dtype
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """See Unpickler."""
        word, dtype, key, *_ = pid
        if word != "storage" or not isinstance(key, str):
            raise pickle.UnpicklingError(f"it names {str(pid)[:80]}")
        return dtype, key


def _record_tensor(
    storage: Any, offset: int, shape: Any, stride: Any, grad: bool, hooks: Any, *more: Any
) -> _PickledTensor:
    """Return the arguments of torch's rebuild functions as a record; the third version has its type at the end."""
    dtype = more[0] if more else storage[0]
    if not isinstance(dtype, torch.dtype):
        raise pickle.UnpicklingError(f"its type is {dtype!r}")
    return _PickledTensor(dtype, storage[1], offset, tuple(shape), tuple(stride))


class _Window(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, files: ImportedFiles, path: Path, begin: int, size: int) -> None:
        self._files, self._path, self._begin, self._size, self._at = files, path, begin, size, 0

    def readable(self) -> bool:
        """See RawIOBase."""
        return True

    def seekable(self) -> bool:
        """See RawIOBase."""
        return True

    def tell(self) -> int:
        """See RawIOBase."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See RawIOBase."""
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise OSError(22, "before the beginning")  # as a file says it, which zipfile expects
        self._at = at
        return at

    def readinto(self, into: Any) -> int:
        """See RawIOBase."""
        view = memoryview(into)[: max(0, min(len(into), self._size - self._at))]
        self._files.fill(self._path, view, self._begin + self._at)
        self._at += len(view)
        return len(view)


# A file of `torch.save` as a checkpoint: its dict, or a model's state dict alone. It is mapped, so that no more than
# what is being copied has to be in memory.

AGAIN = "copy it again, or save it again"


class TorchFile(NamedTuple):
    """A file that was read and whose check sums were compared, where it has some."""

    path: Path
    values: Mapping[Any, Any]
    bytes: int
    unchecked: int


def load_file(path: Path) -> TorchFile:
    """Load a file of torch.save after comparing its check sums. Raise UsageError for what is no dict, or of
    classes that are not taken over, CheckpointError, OSError."""
    if not path.is_file():
        raise Absent(f"{path} is not a file", hint="give a file that torch.save wrote")
    has_checksums = verify_checksums_if_present(path, AGAIN)
    try:
        with damage_as_checkpoint_error(path, AGAIN), descriptor_path(path) as open_path:
            values = torch.load(open_path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as err:
        raise UsageError(
            f"{path} holds values of classes that cannot be imported: {refused_class(err)}",
            hint="save dicts, tensors and plain values: model.state_dict() instead of the model",
        ) from None
    if not isinstance(values, dict) or not values:
        raise UsageError(f"{path} holds a {type(values).__name__}, expected a dict with at least one entry", hint=AGAIN)
    return TorchFile(path, values, path.stat().st_size, int(not has_checksums))


def single_rank_part(file: TorchFile) -> Iterator[RankPart]:
    """Yield the one shard. A dict of tensors alone is a model's. Raise UsageError, StateNotSerializable."""
    values = file.values
    if all(isinstance(value, torch.Tensor) for value in values.values()):
        values = {"model": values}
    imported = ImportedTree()
    tree = imported.encode(values)
    yield RankPart(imported.pieces, tree)
