"""What Megatron-core's `dist_checkpointing.save` wrote (`torch_dist`), as a checkpoint of MegatronCheckpoints: the
inverse of the export, without Megatron."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hyperpod_kit.checkpoint.formats import dcp_folder
from hyperpod_kit.checkpoint.formats.byte_sources import ImportedFiles, ImportedPiece, TensorBytes, read_small_file
from hyperpod_kit.checkpoint.formats.dcp_folder import DcpFolder
from hyperpod_kit.checkpoint.importing import from_torch
from hyperpod_kit.checkpoint.importing.from_torch import TorchFile
from hyperpod_kit.checkpoint.importing.imported_tree import ImportedTree
from hyperpod_kit.checkpoint.importing.new_root import RankPart
from hyperpod_kit.checkpoint.repository.shard import TensorSpec
from hyperpod_kit.checkpoint.sharded_state import stored_name, torch_save_with_length_and_padding
from hyperpod_kit.checkpoint.tensors import per_rank_name
from hyperpod_kit.errors import CheckpointError, UsageError
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
            f"{folder} has no {_CONFIG}, so it is no checkpoint of dist_checkpointing that was finished",
            hint="name its checkpoint_dir: iter_0000100 and the like; of plain torch: --from dcp",
        )
    try:
        settings = parse_json_object(read_small_file(config, LARGEST))
    except ValueError as err:
        raise CheckpointError(f"{config} is damaged: {err}", hint=from_torch.AGAIN) from None
    if settings.get("sharded_backend") != "torch_dist" or settings.get("common_backend", "torch") != "torch":
        raise UsageError(
            f"{folder} is of {json.dumps(settings)[:200]}, expected torch_dist",
            hint="load it with Megatron, and save it as torch_dist",
        )
    dcp = dcp_folder.inspect_folder(files, folder)
    flattened = sorted(
        str(name) for name, entry in dcp.megatron_data.items() if entry
    )  # Megatron-core 0.13 names all tensors
    if flattened:
        raise UsageError(
            f"{folder} holds ranges of flattened tensors ({str(flattened)[:80]}): that is not taken over",
            hint="optimizer.sharded_state_dict(metadata={'distrib_optim_sharding_type': 'fully_reshardable'})",
        )
    if not (folder / _COMMON).is_file():
        raise CheckpointError(f"{folder} is not whole, it lacks {_COMMON}", hint=from_torch.AGAIN)
    return MegatronFolder(dcp, from_torch.load_file(folder / _COMMON))


def single_rank_part(files: ImportedFiles, folder: MegatronFolder) -> Iterator[RankPart]:
    """Yield the one shard: a box of a tensor is a tensor of its own here. Raise UsageError,
    StateNotSerializable."""
    dcp = folder.dcp
    imported = ImportedTree()
    pieces: list[ImportedPiece] = []
    boxes: dict[str, Any] = {}
    for key, chunks in dcp.chunks.items():
        first = chunks[0].spec
        boxes[key] = [first.dtype, list(first.full_shape), []]
        for spec, source in chunks:
            offsets = spec.offsets or (0,) * len(spec.shape)
            boxes[key][2].append([list(offsets), list(spec.shape)])
            name = stored_name(key, offsets, spec.shape, spec.full_shape)
            pieces.append(ImportedPiece(TensorSpec(name, spec.dtype, spec.shape), source))
    values = {
        "tensors": {piece.spec.name: imported.placeholder(piece.spec.name) for piece in pieces},
        "objects": {key: imported.placeholder(per_rank_name(0, f"objects.{key}")) for key in dcp.values},
        "boxes": boxes,
        "common": dict(folder.common.values),
    }
    tree = imported.encode(values)
    for key in dcp.values:
        pieces.append(_object_piece(key, dcp_folder.load_value(files, dcp, key)))
    yield RankPart([*pieces, *imported.pieces], tree)


def _object_piece(key: str, objects: Any) -> ImportedPiece:
    """Return an object as the piece that the adapter stores. Megatron puts each into a list of one. Raise
    CheckpointError."""
    if not isinstance(objects, list) or len(objects) != 1:
        raise CheckpointError(f"{key} is a {type(objects).__name__}, expected Megatron's list of one object")
    data = torch_save_with_length_and_padding(key, objects[0])
    return ImportedPiece(TensorSpec(per_rank_name(0, f"objects.{key}"), "U8", tuple(data.shape)), TensorBytes(data))
