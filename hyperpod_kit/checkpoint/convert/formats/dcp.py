"""A directory of torch.distributed.checkpoint, read and written: what its `.metadata` says, held against the files.

`.metadata` is a pickle. Its classes are torch's own records, which are made without running anything; a pickle that
names anything else is refused.
"""

from __future__ import annotations

import enum
import io
import itertools
import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata

from hyperpod_kit.checkpoint.codec.dtypes import NAMES
from hyperpod_kit.checkpoint.convert.files import torch_files
from hyperpod_kit.checkpoint.convert.files.byte_sources import ImportedFiles, ImportedPiece, read_small_file
from hyperpod_kit.checkpoint.convert.files.foreign_format import ImportSource
from hyperpod_kit.checkpoint.convert.files.imported_tree import ImportedTree
from hyperpod_kit.checkpoint.convert.files.nested_state import ExportedState, NestedStateFormat
from hyperpod_kit.checkpoint.convert.files.new_root import RankPart
from hyperpod_kit.checkpoint.convert.files.restricted_pickle import UNPICKLE_ERRORS, RestrictedUnpickler
from hyperpod_kit.checkpoint.repository.format.shard import parse_spec
from hyperpod_kit.checkpoint.restore.gathered_tensors import TensorAllocator
from hyperpod_kit.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.filesystem import _StorageInfo

METADATA = ".metadata"
_METADATA_LIMIT = 192 << 20
"""Bytes of `.metadata`: a million boxes."""
_MAX_DEPTH = 200
"""Containers inside each other: what a checkpoint can hold."""
_COPY_HINT = "copy it again, or take another checkpoint"

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


_IGNORED_CLASSES = {
    "torch.distributed.checkpoint.planner": frozenset(
        {"BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"}
    ),
    "megatron.core.dist_checkpointing.strategies.torch": frozenset({"MCoreSavePlan"}),
}
"""Megatron-core keeps in it what each rank was to write, for its next save."""


class _IgnoredClass:
    """One of those: nothing is kept of it."""

    def __new__(cls, *_: Any) -> _IgnoredClass:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        del state


def _getattr_for_enums_only(kind: Any, name: Any) -> Any:
    """A member of an enumeration, as pickles of Python 3.11.0 to 3.11.3 say it: by `getattr`, which does more."""
    if kind is _IgnoredClass:
        return _IgnoredClass()
    if not isinstance(kind, enum.EnumMeta) or name not in kind.__members__:
        raise pickle.UnpicklingError(f"it asks for {str(name)[:80]!r} of {str(kind)[:80]}")
    return kind[name]


class DcpItemRange(NamedTuple):
    """Where an item lies."""

    path: Path
    begin: int
    size: int


class DcpFolder(NamedTuple):
    """A directory that was looked at. `chunks`: of each tensor its boxes, whole where it is one; `values`: where the
    items that are no tensors lie; `paths`: of each item the keys that lead to it, where the writer has said so;
    `unchecked`: of how many tensors' boxes there is no check sum; `more`: what Megatron says of tensors, by name."""

    path: Path
    chunks: dict[str, tuple[ImportedPiece, ...]]
    values: dict[str, DcpItemRange]
    paths: dict[str, tuple[str | int, ...]]
    bytes: int
    unchecked: int
    megatron_data: dict[Any, Any]

    @property
    def max_chunks_per_tensor(self) -> int:
        """The number of boxes of the tensor that has the most."""
        return max(map(len, self.chunks.values()), default=1)


def inspect_folder(files: ImportedFiles, folder: Path) -> DcpFolder:
    """Return what the directory holds: all there, each item where `.metadata` has it and of the type and shape
    that it says. The bytes of tensors are not read yet: their check sums are compared when they are.

    Raise UsageError for what is no such directory, or is of a kind that cannot be taken over, CheckpointError
    for what is missing or damaged, OSError.
    """
    metadata = _load_metadata(folder)
    try:
        return _verify_and_locate_entries(files, folder, metadata)
    except UNPICKLE_ERRORS as err:
        raise CheckpointError(f"{folder / METADATA} is damaged, or not torch's: {err!r}", hint=_COPY_HINT) from None


def _verify_and_locate_entries(files: ImportedFiles, folder: Path, metadata: dcp_metadata.Metadata) -> DcpFolder:
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    ranges: dict[tuple[str, Any], DcpItemRange] = {}
    for key, info in _require_type(metadata.storage_data, dict, "storage_data", folder).items():
        index, storage_info = (
            _require_type(key, dcp_metadata.MetadataIndex, "a key", folder),
            _require_type(info, _StorageInfo, "a place", folder),
        )
        offset = index.offset
        if offset is not None:
            offset = tuple(offset)
        ranges[_require_type(index.fqn, str, "a name", folder), offset] = _checked_item_range(
            folder, index.fqn, storage_info
        )
    _require_disjoint(folder, ranges)
    chunks: dict[str, tuple[ImportedPiece, ...]] = {}
    values: dict[str, DcpItemRange] = {}
    unchecked = 0
    for name, entry in _require_type(metadata.state_dict_metadata, dict, "state_dict_metadata", folder).items():
        _require_type(name, str, "a name", folder)
        if isinstance(entry, dcp_metadata.TensorStorageMetadata):
            loaded = [
                _locate_chunk_and_has_checksum(files, folder, name, entry, chunk, ranges) for chunk in entry.chunks
            ]
            chunks[name] = tuple(piece for piece, _ in loaded)
            unchecked += sum(not has_checksum for _, has_checksum in loaded)
        elif (name, None) in ranges:
            values[name] = ranges[name, None]
        else:
            raise CheckpointError(f"{folder / METADATA} does not give the position of {name}", hint=_COPY_HINT)
    size = sum(path.stat().st_size for path in {item_range.path for item_range in ranges.values()})
    more = _require_type(getattr(metadata, "mcore_data", None) or {}, dict, "mcore_data", folder)
    return DcpFolder(folder, chunks, values, _validated_key_paths(folder, metadata.planner_data), size, unchecked, more)


def load_value(files: ImportedFiles, folder: DcpFolder, name: str) -> Any:
    """An item that is no tensor. Raises UsageError for one of classes that are not taken over, CheckpointError."""
    try:
        return torch_files.load_value(files, *folder.values[name])
    except pickle.UnpicklingError as err:
        raise UsageError(
            f"{name} in {folder.path} is of a class that cannot be imported: {torch_files.refused_class(err)}",
            hint="load it with the program that wrote it, and save it with Checkpoints",
        ) from None


def _locate_chunk_and_has_checksum(
    files: ImportedFiles,
    folder: Path,
    name: str,
    entry: dcp_metadata.TensorStorageMetadata,
    chunk: Any,
    ranges: Mapping[tuple[str, Any], DcpItemRange],
) -> tuple[ImportedPiece, bool]:
    """Return one box of a tensor, whose bytes are not read yet, and whether it has a check sum. Raise
    CheckpointError, UsageError."""
    full_shape, offsets, shape = (tuple(extents) for extents in (entry.size, chunk.offsets, chunk.sizes))
    if (name, offsets) not in ranges:
        raise CheckpointError(
            f"{folder / METADATA} does not give the position of {name} at {list(offsets)}", hint=_COPY_HINT
        )
    item_range = ranges[name, offsets]
    stored = torch_files.locate_tensor(files, *item_range)
    if (stored.dtype, stored.shape) != (entry.properties.dtype, shape):
        raise CheckpointError(
            f"{name} at {list(offsets)} is {stored.dtype} {list(stored.shape)} in {item_range.path.name}, and "
            f"{entry.properties.dtype} {list(shape)} in {METADATA}",
            hint=_COPY_HINT,
        )
    if stored.dtype not in NAMES:
        raise UsageError(f"{name} is a tensor of {stored.dtype}, which a checkpoint cannot hold", hint="convert it")
    is_partial = shape != full_shape
    if is_partial:
        spec = parse_spec(name, NAMES[stored.dtype], shape, offsets, full_shape)
    else:
        spec = parse_spec(name, NAMES[stored.dtype], shape, (), ())
    return ImportedPiece(spec, stored.source(files, item_range.path)), stored.crc is not None


def _require_disjoint(folder: Path, ranges: Mapping[tuple[str, Any], DcpItemRange]) -> None:
    """Each byte belongs to one item: else a few bytes could be said to be a thousand tensors."""
    ordered = sorted(
        (item_range.path.name, item_range.begin, item_range.begin + item_range.size, name)
        for (name, _), item_range in ranges.items()
    )
    for (file, _, end, first_name), (other_file, begin, _, second_name) in itertools.pairwise(ordered):
        if file == other_file and begin < end:
            raise CheckpointError(
                f"{folder / METADATA} has {first_name} and {second_name} in one place of {file}", hint=_COPY_HINT
            )


def _checked_item_range(folder: Path, name: str, info: _StorageInfo) -> DcpItemRange:
    file = _require_type(info.relative_path, str, "a file", folder)
    begin, size = (
        _require_type(info.offset, int, "an offset", folder),
        _require_type(info.length, int, "a length", folder),
    )
    if file in ("", ".", "..") or os.path.basename(file) != file:
        raise CheckpointError(
            f"{folder / METADATA} has {name} in {file!r}, which is not in the directory", hint=_COPY_HINT
        )
    if getattr(info, "transform_descriptors", None):
        raise UsageError(
            f"{name} in {folder} went through {', '.join(map(str, info.transform_descriptors or ()))}: such files "
            "cannot be imported",
            hint="load it with torch, and save it without extensions",
        )
    path = folder / file
    if not path.is_file():
        raise CheckpointError(f"{folder} is incomplete: it lacks {file}", hint=_COPY_HINT)
    file_size = path.stat().st_size
    if begin < 0 or size < 0 or begin + size > file_size:
        raise CheckpointError(
            f"{path} has {file_size} bytes, and {METADATA} has {name} at {begin}..{begin + size}", hint=_COPY_HINT
        )
    return DcpItemRange(path, begin, size)


def _load_metadata(folder: Path) -> dcp_metadata.Metadata:
    path = folder / METADATA
    try:
        loaded = _Records(io.BytesIO(read_small_file(path, _METADATA_LIMIT))).load()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{folder} has no {METADATA}, so it is not a complete checkpoint of torch.distributed.checkpoint",
            hint="give the directory that was its checkpoint_id",
        ) from None
    except UNPICKLE_ERRORS as err:
        reason = repr(err)
        if isinstance(err, pickle.UnpicklingError):
            reason = str(err)
        raise CheckpointError(f"{path} is damaged, or not torch's: {reason}", hint=_COPY_HINT) from None
    metadata: dcp_metadata.Metadata = _require_type(loaded, dcp_metadata.Metadata, "it", folder)
    return metadata


class _Records(RestrictedUnpickler):
    """torch's records, types and places, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """See Unpickler."""
        if module.partition(".")[0] == "pathlib":
            return os.path.join
        if name == "getattr" and module in ("builtins", "__builtin__"):
            return _getattr_for_enums_only
        if name in _RECORDS.get(module, ()):
            return super().find_class(module, name)
        if name in _IGNORED_CLASSES.get(module, ()):
            return _IgnoredClass
        if (module, name) == ("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"):
            return dcp_metadata.Metadata  # of which it was a subclass in 0.15
        kind = None
        if module == "torch":
            kind = getattr(torch, name, None)
        if isinstance(kind, (torch.dtype, torch.layout)):
            return kind
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _validated_key_paths(folder: Path, planner_data: Any) -> dict[str, tuple[str | int, ...]]:
    if not isinstance(planner_data, dict):
        return {}
    for name, path in planner_data.items():
        if not isinstance(name, str) or not _is_key_path(path):
            raise CheckpointError(f"{folder / METADATA} has the path {str(path)[:80]!r}", hint=_COPY_HINT)
    return dict(planner_data)


def _is_key_path(path: Any) -> bool:
    """Whether it is a tuple of names and numbers, not longer than a state is deep."""
    if not isinstance(path, tuple) or not 0 < len(path) <= _MAX_DEPTH:
        return False
    return all(type(part) in (str, int) for part in path)


def _require_type(value: Any, kind: type, what: str, folder: Path) -> Any:
    if not isinstance(value, kind) or (kind is int and type(value) is not int):
        raise CheckpointError(
            f"{folder / METADATA} is damaged, or not torch's: {what} is a {type(value).__name__}, expected "
            f"{kind.__name__}",
            hint=_COPY_HINT,
        )
    return value


# Such a directory becomes a checkpoint of Checkpoints: the same names, its tensors in the boxes that it has them in.


def rank_parts_by_box_number(files: ImportedFiles, folder: DcpFolder) -> Iterator[RankPart]:
    """Yield as many shards as a tensor has boxes at most, each with one box of each. Raise UsageError,
    CheckpointError."""
    imported = ImportedTree()
    items: dict[str, Any] = {name: imported.placeholder(name) for name in folder.chunks}
    items.update((name, load_value(files, folder, name)) for name in folder.values)
    tree = imported.encode(_nest_items_by_paths(items, folder))
    for number in range(folder.max_chunks_per_tensor):
        pieces = [boxes[number] for boxes in folder.chunks.values() if number < len(boxes)]
        if number == 0:
            pieces += imported.pieces
        yield RankPart(pieces, tree)


class _PathContainer(dict[Any, Any]):
    """A container of the paths, and not of a value."""


def _nest_items_by_paths(items: dict[str, Any], folder: DcpFolder) -> dict[Any, Any]:
    root = _PathContainer()
    for name, item in items.items():
        path = folder.paths.get(name, (name,))
        inner = root
        for key in path[:-1]:
            inner = inner.setdefault(key, _PathContainer())
            if not isinstance(inner, _PathContainer):
                raise CheckpointError(f"{folder.path} has {name} below a value")
        if path[-1] in inner:
            raise CheckpointError(f"{folder.path} has two items at {name}")
        inner[path[-1]] = item
    return {name: _numbered_dicts_to_lists(item) for name, item in root.items()}


def _numbered_dicts_to_lists(value: Any) -> Any:
    """Turn path containers whose keys are numbers into lists: numbers in a path are those of a list."""
    if not isinstance(value, _PathContainer):
        return value
    if not all(isinstance(key, int) for key in value):
        return {key: _numbered_dicts_to_lists(item) for key, item in value.items()}
    if sorted(value) != list(range(len(value))):
        raise CheckpointError(f"a list in it has the items {sorted(value)[:8]}")
    return [_numbered_dicts_to_lists(value[number]) for number in range(len(value))]


class DcpFormat(NestedStateFormat):
    """See the module."""

    can_import = True

    def inspect(self, files: ImportedFiles, path: Path, tag: str | None) -> ImportSource:
        folder = inspect_folder(files, path)
        parts = rank_parts_by_box_number(files, folder)
        return ImportSource(None, folder.max_chunks_per_tensor, parts, folder.bytes, folder.unchecked)

    def write_state(self, state: ExportedState, path: Path, allocate: TensorAllocator) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that no process group is there is what is meant
            save(state.nested, storage_writer=FileSystemWriter(str(path)), no_dist=True)


FORMAT = DcpFormat()
