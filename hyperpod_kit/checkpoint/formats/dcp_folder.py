"""A directory that torch.distributed.checkpoint wrote: what its `.metadata` says, held against the files.

`.metadata` is a pickle. Its classes are torch's own records, which are made without running anything; a pickle that
names anything else is refused.
"""

from __future__ import annotations

import enum
import io
import itertools
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import metadata as torchs
from torch.distributed.checkpoint.filesystem import _StorageInfo

from hyperpod_kit.checkpoint.dtypes import NAMES
from hyperpod_kit.checkpoint.formats import torch_files
from hyperpod_kit.checkpoint.formats.byte_sources import ImportedFiles, ImportedPiece, text_of
from hyperpod_kit.checkpoint.formats.careful_pickle import WRONG, CarefulUnpickler
from hyperpod_kit.checkpoint.repository.shard import parse_spec
from hyperpod_kit.errors import CheckpointError, UsageError

METADATA = ".metadata"
_MOST = 192 << 20
"""Bytes of `.metadata`: a million boxes."""
_DEEPEST = 200
"""Containers inside each other: what a checkpoint can hold."""
_AGAIN = "copy it here again, or take another checkpoint"

_RECORDS = {
    "torch.distributed.checkpoint.metadata": frozenset(
        {
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        }
    ),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo"}),
    "torch.distributed._shard.sharded_tensor.metadata": frozenset({"MEM_FORMAT_ENCODING", "TensorProperties"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch": frozenset({"Size"}),
    "collections": frozenset({"OrderedDict"}),
}


_PASSED_OVER = {
    "torch.distributed.checkpoint.planner": frozenset(
        {"BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"}
    ),
    "megatron.core.dist_checkpointing.strategies.torch": frozenset({"MCoreSavePlan"}),
}
"""Megatron-core keeps in it what each rank was to write, for its next save."""


class _PassedOver:
    """One of those: nothing is kept of it."""

    def __new__(cls, *_: Any) -> _PassedOver:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        del state


def _member(kind: Any, name: Any) -> Any:
    """A member of an enumeration, as pickles of Python 3.11.0 to 3.11.3 say it: by `getattr`, which does more."""
    if kind is _PassedOver:
        return _PassedOver()
    if not isinstance(kind, enum.EnumMeta) or name not in kind.__members__:
        raise pickle.UnpicklingError(f"it asks for {str(name)[:80]!r} of {str(kind)[:80]}")
    return kind[name]


class DcpPlace(NamedTuple):
    """Where an item lies."""

    path: Path
    begin: int
    size: int


class DcpFolder(NamedTuple):
    """A directory that was looked at. `boxes`: of each tensor its boxes, whole where it is one; `values`: where the
    items that are no tensors lie; `paths`: of each item the keys that lead to it, where the writer has said so;
    `unchecked`: of how many tensors' boxes there is no check sum; `more`: what Megatron says of tensors, by name."""

    path: Path
    boxes: dict[str, tuple[ImportedPiece, ...]]
    values: dict[str, DcpPlace]
    paths: dict[str, tuple[str | int, ...]]
    bytes: int
    unchecked: int
    more: dict[Any, Any]

    @property
    def most_boxes(self) -> int:
        """Of the tensor that lies in the most."""
        return max(map(len, self.boxes.values()), default=1)


def looked_at(files: ImportedFiles, folder: Path) -> DcpFolder:
    """What the directory holds: all there, each item where `.metadata` has it and of the type and shape that it says.
    The bytes of tensors are not read yet: their check sums are compared when they are.

    Raises UsageError for what is no such directory, or is of a kind that cannot be taken over, CheckpointError for what
    is missing or damaged, OSError.
    """
    said = _metadata(folder)
    try:
        return _held_against(files, folder, said)
    except WRONG as err:
        raise CheckpointError(f"{folder / METADATA} is damaged, or not torch's: {err!r}", hint=_AGAIN) from None


def _held_against(files: ImportedFiles, folder: Path, said: torchs.Metadata) -> DcpFolder:
    places: dict[tuple[str, Any], DcpPlace] = {}
    for at, info in _of(said.storage_data, dict, "storage_data", folder).items():
        index, where = _of(at, torchs.MetadataIndex, "a key", folder), _of(info, _StorageInfo, "a place", folder)
        offset = index.offset if index.offset is None else tuple(index.offset)
        places[_of(index.fqn, str, "a name", folder), offset] = _place(folder, index.fqn, where)
    _apart(folder, places)
    boxes: dict[str, tuple[ImportedPiece, ...]] = {}
    values: dict[str, DcpPlace] = {}
    unchecked = 0
    for name, entry in _of(said.state_dict_metadata, dict, "state_dict_metadata", folder).items():
        _of(name, str, "a name", folder)
        if isinstance(entry, torchs.TensorStorageMetadata):
            found = [_box(files, folder, name, entry, chunk, places) for chunk in entry.chunks]
            boxes[name] = tuple(piece for piece, _ in found)
            unchecked += sum(not summed for _, summed in found)
        elif (name, None) in places:
            values[name] = places[name, None]
        else:
            raise CheckpointError(f"{folder / METADATA} does not say where {name} lies", hint=_AGAIN)
    size = sum(path.stat().st_size for path in {place.path for place in places.values()})
    more = _of(getattr(said, "mcore_data", None) or {}, dict, "mcore_data", folder)
    return DcpFolder(folder, boxes, values, _paths(folder, said.planner_data), size, unchecked, more)


def value_of(files: ImportedFiles, found: DcpFolder, name: str) -> Any:
    """An item that is no tensor. Raises UsageError for one of classes that are not taken over, CheckpointError."""
    try:
        return torch_files.value_at(files, *found.values[name])
    except pickle.UnpicklingError as err:
        raise UsageError(
            f"{name} in {found.path} is of a class that is not taken over: {torch_files.refused(err)}",
            hint="load it with the program that wrote it, and save it with Checkpoints: docs/how-to/dcp.md",
        ) from None


def _box(
    files: ImportedFiles,
    folder: Path,
    name: str,
    entry: torchs.TensorStorageMetadata,
    chunk: Any,
    places: Mapping[tuple[str, Any], DcpPlace],
) -> tuple[ImportedPiece, bool]:
    """One box, and whether it has a check sum."""
    whole, offsets, shape = (tuple(extents) for extents in (entry.size, chunk.offsets, chunk.sizes))
    if (name, offsets) not in places:
        raise CheckpointError(f"{folder / METADATA} does not say where {name} at {list(offsets)} lies", hint=_AGAIN)
    place = places[name, offsets]
    stored = torch_files.tensor_at(files, *place)
    if (stored.dtype, stored.shape) != (entry.properties.dtype, shape):
        raise CheckpointError(
            f"{name} at {list(offsets)} is {stored.dtype} {list(stored.shape)} in {place.path.name}, and "
            f"{entry.properties.dtype} {list(shape)} in {METADATA}",
            hint=_AGAIN,
        )
    if stored.dtype not in NAMES:
        raise UsageError(f"{name} is a tensor of {stored.dtype}, which a checkpoint cannot hold", hint="convert it")
    part = shape != whole
    spec = parse_spec(name, NAMES[stored.dtype], shape, offsets if part else (), whole if part else ())
    return ImportedPiece(spec, stored.source(files, place.path)), stored.crc is not None


def _apart(folder: Path, places: Mapping[tuple[str, Any], DcpPlace]) -> None:
    """Each byte belongs to one item: else a few bytes could be said to be a thousand tensors."""
    ordered = sorted(
        (place.path.name, place.begin, place.begin + place.size, name) for (name, _), place in places.items()
    )
    for (file, _, end, one), (other_file, begin, _, other) in itertools.pairwise(ordered):
        if file == other_file and begin < end:
            raise CheckpointError(f"{folder / METADATA} has {one} and {other} in one place of {file}", hint=_AGAIN)


def _place(folder: Path, name: str, info: _StorageInfo) -> DcpPlace:
    file = _of(info.relative_path, str, "a file", folder)
    begin, size = _of(info.offset, int, "an offset", folder), _of(info.length, int, "a length", folder)
    if file in ("", ".", "..") or os.path.basename(file) != file:
        raise CheckpointError(f"{folder / METADATA} has {name} in {file!r}, which is not in the directory", hint=_AGAIN)
    if getattr(info, "transform_descriptors", None):
        raise UsageError(
            f"{name} in {folder} went through {', '.join(map(str, info.transform_descriptors or ()))}: that is not "
            "taken over",
            hint="load it with torch, and save it without extensions",
        )
    path = folder / file
    if not path.is_file():
        raise CheckpointError(f"{folder} is not whole, it lacks {file}", hint=_AGAIN)
    there = path.stat().st_size
    if begin < 0 or size < 0 or begin + size > there:
        raise CheckpointError(
            f"{path} has {there} bytes, and {METADATA} has {name} at {begin}..{begin + size}", hint=_AGAIN
        )
    return DcpPlace(path, begin, size)


def _metadata(folder: Path) -> torchs.Metadata:
    path = folder / METADATA
    try:
        said = _Records(io.BytesIO(text_of(path, _MOST))).load()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{folder} has no {METADATA}, so it is no checkpoint of torch.distributed.checkpoint that was finished",
            hint="name the directory that was its checkpoint_id",
        ) from None
    except WRONG as err:
        why = str(err) if isinstance(err, pickle.UnpicklingError) else repr(err)
        raise CheckpointError(f"{path} is damaged, or not torch's: {why}", hint=_AGAIN) from None
    made: torchs.Metadata = _of(said, torchs.Metadata, "it", folder)
    return made


class _Records(CarefulUnpickler):
    """torch's records, types and places, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """See Unpickler."""
        if module.partition(".")[0] == "pathlib":
            return os.path.join
        if name == "getattr" and module in ("builtins", "__builtin__"):
            return _member
        if name in _RECORDS.get(module, ()):
            return super().find_class(module, name)
        if name in _PASSED_OVER.get(module, ()):
            return _PassedOver
        if (module, name) == ("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"):
            return torchs.Metadata  # of which it was a subclass in 0.15
        kind = getattr(torch, name, None) if module == "torch" else None
        if isinstance(kind, (torch.dtype, torch.layout)):
            return kind
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _paths(folder: Path, said: Any) -> dict[str, tuple[str | int, ...]]:
    if not isinstance(said, dict):
        return {}
    for name, path in said.items():
        parts = path if isinstance(path, tuple) else ()
        known = isinstance(name, str) and 0 < len(parts) <= _DEEPEST
        if not known or any(type(part) not in (str, int) for part in parts):
            raise CheckpointError(f"{folder / METADATA} has the path {str(path)[:80]!r}", hint=_AGAIN)
    return dict(said)


def _of(value: Any, kind: type, what: str, folder: Path) -> Any:
    if not isinstance(value, kind) or (kind is int and type(value) is not int):
        raise CheckpointError(
            f"{folder / METADATA} is damaged, or not torch's: {what} is a {type(value).__name__}, expected "
            f"{kind.__name__}",
            hint=_AGAIN,
        )
    return value
