"""A model's weights from safetensors as a checkpoint of them: what load_weights reads, and Hugging Face's export writes
again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hyperpod_kit.checkpoint.formats.byte_sources import read_small_file
from hyperpod_kit.checkpoint.formats.safetensors_files import PRETRAINED, WeightFiles
from hyperpod_kit.checkpoint.importing.imported_tree import ImportedTree
from hyperpod_kit.checkpoint.importing.new_root import RankPart
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.parse import parse_json_object

_STATE = "trainer_state.json"
_MOST = 1 << 30
_FOLDER = re.compile(r"checkpoint-([0-9]{1,18})")


def single_rank_part(weights: WeightFiles) -> Iterator[RankPart]:
    """Yield the one shard. Raise StateNotSerializable."""
    imported = ImportedTree()
    model = {name: imported.placeholder(f"model.{name}") for name in weights.pieces}
    tree = imported.encode({"model": model, "extra": {PRETRAINED: weights.texts} if weights.texts else {}})
    yield RankPart(
        [piece._replace(spec=piece.spec._replace(name=f"model.{name}")) for name, piece in weights.pieces.items()], tree
    )


def trainer_step_or_zero(folder: Path) -> int:
    """Return the step of the Trainer whose checkpoint it is, else 0. Raise CheckpointError."""
    path = folder / _STATE
    if path.is_file():
        try:
            step = parse_json_object(read_small_file(path, _MOST), _MOST)["global_step"]
        except (ValueError, KeyError) as err:
            raise CheckpointError(f"{path} is damaged: {err!r}", hint="--step says which step it is of") from None
        if type(step) is int and step >= 0:
            return step
    match = _FOLDER.fullmatch(folder.resolve().name)
    if match:
        return int(match.group(1))
    return 0
