"""A directory of Megatron-core's `dist_checkpointing` (`torch_dist`), read as a checkpoint of MegatronCheckpoints and
written from one, without Megatron."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.convert.files import torch_files
from hyperpod_kit.checkpoint.convert.files.byte_sources import (
    ImportedFiles,
    ImportedPiece,
    TensorBytes,
    read_small_file,
)
from hyperpod_kit.checkpoint.convert.files.foreign_format import ImportSource
from hyperpod_kit.checkpoint.convert.files.imported_tree import ImportedTree
from hyperpod_kit.checkpoint.convert.files.nested_state import ExportedState, NestedStateFormat
from hyperpod_kit.checkpoint.convert.files.new_root import RankPart
from hyperpod_kit.checkpoint.convert.files.torch_files import TorchFile
from hyperpod_kit.checkpoint.convert.formats import dcp
from hyperpod_kit.checkpoint.convert.formats.dcp import DcpFolder
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.restore.gathered_tensors import TensorAllocator
from hyperpod_kit.checkpoint.state.sharded_state import (
    stored_name,
    torch_load_with_length,
    torch_save_with_length_and_padding,
)
from hyperpod_kit.checkpoint.state.tensors import per_rank_name
from hyperpod_kit.errors import CheckpointError, UsageError
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.parse import LARGEST, parse_json_object

_CONFIG = "metadata.json"
_COMMON = "common.pt"
_STEPS = ("iteration", "step")


class MegatronFolder(NamedTuple):
    """A directory that was looked at."""

    dcp: DcpFolder
    common: TorchFile

    @property
    def step(self) -> int | None:
        """The step that the checkpoint itself names, None when it names none."""
        steps = (self.common.values.get(name) for name in _STEPS)
        return next((step for step in steps if type(step) is int and step >= 0), None)


def inspect_folder(files: ImportedFiles, folder: Path) -> MegatronFolder:
    """Return what the directory holds. Raise UsageError, CheckpointError, OSError."""
    config = folder / _CONFIG
    if not config.is_file():
        raise UsageError(
            f"{folder} has no {_CONFIG}, so it is not a complete checkpoint of dist_checkpointing",
            hint="give its checkpoint_dir, such as iter_0000100; for plain torch: --from dcp",
        )
    try:
        settings = parse_json_object(read_small_file(config, LARGEST))
    except ValueError as err:
        raise CheckpointError(f"{config} is damaged: {err}", hint=torch_files.AGAIN) from None
    if settings.get("sharded_backend") != "torch_dist" or settings.get("common_backend", "torch") != "torch":
        raise UsageError(
            f"{folder} is of {json.dumps(settings)[:200]}, expected torch_dist",
            hint="load it with Megatron, and save it as torch_dist",
        )
    tensors = dcp.inspect_folder(files, folder)
    flattened = sorted(
        str(name) for name, entry in tensors.megatron_data.items() if entry
    )  # Megatron-core 0.13 names all tensors
    if flattened:
        raise UsageError(
            f"{folder} holds ranges of flattened tensors ({str(flattened)[:80]}): such checkpoints cannot be imported",
            hint="optimizer.sharded_state_dict(metadata={'distrib_optim_sharding_type': 'fully_reshardable'})",
        )
    if not (folder / _COMMON).is_file():
        raise CheckpointError(f"{folder} is incomplete: it lacks {_COMMON}", hint=torch_files.AGAIN)
    return MegatronFolder(tensors, torch_files.load_file(folder / _COMMON))


def single_rank_part(files: ImportedFiles, folder: MegatronFolder) -> Iterator[RankPart]:
    """Yield the one shard: a box of a tensor is a tensor of its own here. Raise UsageError,
    StateNotSerializable."""
    dcp_folder = folder.dcp
    imported = ImportedTree()
    pieces: list[ImportedPiece] = []
    boxes: dict[str, Any] = {}
    for key, chunks in dcp_folder.chunks.items():
        first = chunks[0].spec
        boxes[key] = [first.dtype, list(first.full_shape), []]
        for spec, source in chunks:
            offsets = spec.offsets or (0,) * len(spec.shape)
            boxes[key][2].append([list(offsets), list(spec.shape)])
            name = stored_name(key, offsets, spec.shape, spec.full_shape)
            pieces.append(ImportedPiece(TensorSpec(name, spec.dtype, spec.shape), source))
    values = {
        "tensors": {piece.spec.name: imported.placeholder(piece.spec.name) for piece in pieces},
        "objects": {key: imported.placeholder(per_rank_name(0, f"objects.{key}")) for key in dcp_folder.values},
        "boxes": boxes,
        "common": dict(folder.common.values),
    }
    tree = imported.encode(values)
    for key in dcp_folder.values:
        pieces.append(_object_piece(key, dcp.load_value(files, dcp_folder, key)))
    yield RankPart([*pieces, *imported.pieces], tree)


def _object_piece(key: str, objects: Any) -> ImportedPiece:
    """Return an object as the piece that the adapter stores. Megatron puts each into a list of one. Raise
    CheckpointError."""
    if not isinstance(objects, list) or len(objects) != 1:
        raise CheckpointError(f"{key} is a {type(objects).__name__}, expected Megatron's list of one object")
    data = torch_save_with_length_and_padding(key, objects[0])
    return ImportedPiece(TensorSpec(per_rank_name(0, f"objects.{key}"), "U8", tuple(data.shape)), TensorBytes(data))


# A checkpoint of the Megatron adapter as Megatron-core writes one itself (`torch_dist`), without Megatron.

_WRITTEN_CONFIG = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


def write(nested: dict[str, Any], path: Path, allocate: TensorAllocator) -> None:
    """Write the directory `path` as Megatron-core does. `nested`: the whole state; `allocate`: for the tensors
    that are put together. Raise HyperpodKitError, OSError."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.planner import WriteItem
    from torch.distributed.checkpoint.state_dict_saver import save

    class ObjectsAreBytes(DefaultSavePlanner):
        def transform_object(self, write_item: WriteItem, object: Any) -> Any:
            if isinstance(object, io.BytesIO):
                return object
            return super().transform_object(write_item, object)

    boxes = nested["boxes"]
    state: dict[str, Any] = dict(
        allocate({key: TensorSpec(key, dtype, tuple(full_shape)) for key, (dtype, full_shape, _) in boxes.items()})
    )
    for key, (_, full_shape, rows) in boxes.items():
        for offsets, shape in rows:
            part = state[key]
            for dim, (at, extent) in enumerate(zip(offsets, [1] * (len(full_shape) - len(shape)) + shape, strict=True)):
                part = part.narrow(dim, at, extent)
            part.copy_(nested["tensors"][stored_name(key, offsets, tuple(shape), full_shape)].view(part.shape))
    for key, data in nested["objects"].items():
        buffer = io.BytesIO()
        torch.save([torch_load_with_length(bytes(data.numpy()))], buffer)
        state[key] = buffer
    by_descriptor.make_directory(path)
    save(
        state,
        storage_writer=FileSystemWriter(str(path)),
        planner=ObjectsAreBytes(flatten_state_dict=False),
        no_dist=True,
    )
    with by_descriptor.open_stream_for_writing(path / _COMMON, "wb") as out:
        torch.save(nested["common"], out)
    by_descriptor.write_text(path / _CONFIG, json.dumps(_WRITTEN_CONFIG))


class MegatronFormat(NestedStateFormat):
    """See the module."""

    can_import = True

    def inspect(self, files: ImportedFiles, path: Path, tag: str | None) -> ImportSource:
        folder = inspect_folder(files, path)
        tensors, common = folder.dcp, folder.common
        parts = single_rank_part(files, folder)
        size, unchecked = tensors.bytes + common.bytes, tensors.unchecked + common.unchecked
        return ImportSource(folder.step, 1, parts, size, unchecked)

    def require_exportable(self, checkpoint_id: str, tree: Mapping[str, Any]) -> None:
        if "boxes" not in tree:
            raise UsageError(f"{checkpoint_id} was not written by Megatron-core", hint="--to torch or --to dcp")

    def write_state(self, state: ExportedState, path: Path, allocate: TensorAllocator) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that no process group is there is what is meant
            write(state.nested, path, allocate)


FORMAT = MegatronFormat()
