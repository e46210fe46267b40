"""What Megatron-core's `dist_checkpointing.save` wrote (`torch_dist`), as a checkpoint of MegatronCheckpoints: the
inverse of the export, without Megatron."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hyperpod_kit.checkpoint.boxed_state import name_of, object_bytes
from hyperpod_kit.checkpoint.formats import dcp_folder
from hyperpod_kit.checkpoint.formats.byte_sources import ImportedFiles, ImportedPiece, TensorBytes, text_of
from hyperpod_kit.checkpoint.formats.dcp_folder import DcpFolder
from hyperpod_kit.checkpoint.importing import from_torch
from hyperpod_kit.checkpoint.importing.from_torch import TorchFile
from hyperpod_kit.checkpoint.importing.imported_tree import ImportedTree
from hyperpod_kit.checkpoint.importing.new_root import RankPart
from hyperpod_kit.checkpoint.repository.shard import TensorSpec
from hyperpod_kit.checkpoint.tensors import own_name
from hyperpod_kit.errors import CheckpointError, UsageError
from hyperpod_kit.untrusted.parse import LARGEST, json_object

_CONFIG = "metadata.json"
_COMMON = "common.pt"
_STEPS = ("iteration", "step")


class MegatronFolder(NamedTuple):
    """A directory that was looked at."""

    found: DcpFolder
    common: TorchFile

    @property
    def step(self) -> int | None:
        """What it says itself."""
        said = (self.common.values.get(name) for name in _STEPS)
        return next((step for step in said if type(step) is int and step >= 0), None)


def looked_at(files: ImportedFiles, folder: Path) -> MegatronFolder:
    """Raises UsageError, CheckpointError, OSError."""
    config = folder / _CONFIG
    if not config.is_file():
        raise UsageError(
            f"{folder} has no {_CONFIG}, so it is no checkpoint of dist_checkpointing that was finished",
            hint="name its checkpoint_dir: iter_0000100 and the like; of plain torch: --from dcp",
        )
    try:
        said = json_object(text_of(config, LARGEST))
    except ValueError as err:
        raise CheckpointError(f"{config} is damaged: {err}", hint=from_torch.AGAIN) from None
    if said.get("sharded_backend") != "torch_dist" or said.get("common_backend", "torch") != "torch":
        raise UsageError(
            f"{folder} is of {json.dumps(said)[:200]}, expected torch_dist",
            hint="load it with Megatron, and save it as torch_dist",
        )
    found = dcp_folder.looked_at(files, folder)
    flattened = sorted(str(name) for name, one in found.more.items() if one)  # Megatron-core 0.13 names all tensors
    if flattened:
        raise UsageError(
            f"{folder} holds ranges of flattened tensors ({str(flattened)[:80]}): that is not taken over",
            hint="optimizer.sharded_state_dict(metadata={'distrib_optim_sharding_type': 'fully_reshardable'})",
        )
    if not (folder / _COMMON).is_file():
        raise CheckpointError(f"{folder} is not whole, it lacks {_COMMON}", hint=from_torch.AGAIN)
    return MegatronFolder(found, from_torch.looked_at(folder / _COMMON))


def parts(files: ImportedFiles, folder: MegatronFolder) -> Iterator[RankPart]:
    """One shard: a box of a tensor is a tensor of its own here. Raises UsageError, StateNotSerializable."""
    found = folder.found
    made = ImportedTree()
    pieces: list[ImportedPiece] = []
    boxes: dict[str, Any] = {}
    for key, parts_of_it in found.boxes.items():
        first = parts_of_it[0].spec
        boxes[key] = [first.dtype, list(first.full_shape), []]
        for spec, source in parts_of_it:
            offsets = spec.offsets or (0,) * len(spec.shape)
            boxes[key][2].append([list(offsets), list(spec.shape)])
            name = name_of(key, offsets, spec.shape, spec.full_shape)
            pieces.append(ImportedPiece(TensorSpec(name, spec.dtype, spec.shape), source))
    values = {
        "tensors": {piece.spec.name: made.place(piece.spec.name) for piece in pieces},
        "objects": {key: made.place(own_name(0, f"objects.{key}")) for key in found.values},
        "boxes": boxes,
        "common": dict(folder.common.values),
    }
    tree = made.encoded(values)
    for key in found.values:
        pieces.append(_object(key, dcp_folder.value_of(files, found, key)))
    yield RankPart([*pieces, *made.pieces], tree)


def _object(key: str, said: Any) -> ImportedPiece:
    """As the adapter has it. Megatron puts each into a list."""
    if not isinstance(said, list) or len(said) != 1:
        raise CheckpointError(f"{key} is a {type(said).__name__}, expected Megatron's list of one object")
    data = object_bytes(key, said[0])
    return ImportedPiece(TensorSpec(own_name(0, f"objects.{key}"), "U8", tuple(data.shape)), TensorBytes(data))
