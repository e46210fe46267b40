"""A file of `torch.save` as a checkpoint: its dict, or a model's state dict alone. It is mapped, so that no more than
what is being copied has to be in memory."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.formats import torch_files
from hyperpod_kit.checkpoint.formats.byte_sources import descriptor_path
from hyperpod_kit.checkpoint.importing.imported_tree import ImportedTree
from hyperpod_kit.checkpoint.importing.new_root import RankPart
from hyperpod_kit.errors import Absent, UsageError

AGAIN = "copy it here again, or save it again"


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
        raise Absent(f"{path} is no file", hint="name a file that torch.save wrote")
    has_checksums = torch_files.verify_checksums_if_present(path, AGAIN)
    try:
        with torch_files.damage_as_checkpoint_error(path, AGAIN), descriptor_path(path) as open_path:
            values = torch.load(open_path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as err:
        raise UsageError(
            f"{path} holds values of classes that are not taken over: {torch_files.refused_class(err)}",
            hint="save dicts, tensors and plain values: model.state_dict() in the place of the model",
        ) from None
    if not isinstance(values, dict) or not values:
        raise UsageError(f"{path} holds a {type(values).__name__}, expected a dict that is not empty", hint=AGAIN)
    return TorchFile(path, values, path.stat().st_size, int(not has_checksums))


def single_rank_part(file: TorchFile) -> Iterator[RankPart]:
    """Yield the one shard. A dict of tensors alone is a model's. Raise UsageError, StateNotSerializable."""
    values = file.values
    if all(isinstance(value, torch.Tensor) for value in values.values()):
        values = {"model": values}
    imported = ImportedTree()
    tree = imported.encode(values)
    yield RankPart(imported.pieces, tree)
