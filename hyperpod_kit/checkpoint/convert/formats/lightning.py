"""A file that Lightning's `Trainer.fit(ckpt_path=)` reads, of a checkpoint that a CheckpointedFit saved."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.convert.files.foreign_format import ExportSource
from hyperpod_kit.checkpoint.convert.files.nested_state import ExportedState, NestedStateFormat, torch_save_file
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.checkpoint.restore.gathered_tensors import TensorAllocator
from hyperpod_kit.errors import UsageError

LIGHTNING = "lightning"
"""Name of the object under which an adapter keeps what Lightning's checkpoints say beside weights and optimizers."""


class LightningFormat(NestedStateFormat):
    """See the module."""

    def require_exportable(self, checkpoint_id: str, tree: Mapping[str, Any]) -> None:
        if f"objects.{LIGHTNING}" not in tree:
            raise UsageError(
                f"{checkpoint_id} was not written by Lightning's Trainer", hint="--to torch or --to safetensors"
            )

    def write_state(self, state: ExportedState, path: Path, allocate: TensorAllocator) -> None:
        torch_save_file(_lightning_state(state), path)


def lightning_checkpoint(store_or_root: StoreOrRoot, *, attempt: str | None = None) -> dict[str, Any]:
    """Return what Lightning would read from a file of its own: of the newest valid checkpoint, or of `attempt`.
    Per-rank state is rank 0's. Raise as `export` does."""
    source = ExportSource(as_store(store_or_root), attempt)
    return _lightning_state(source.read(lambda name: FORMAT.read_state(source.store, name)))


def _lightning_state(state: ExportedState) -> dict[str, Any]:
    nested = state.nested
    metadata = nested[f"objects.{LIGHTNING}"]
    paths = itertools.chain(["optimizer"], (f"objects.optimizer{number}" for number in itertools.count(1)))
    optimizers = [_with_numbered_params(nested[path]) for path in itertools.takewhile(nested.__contains__, paths)]
    return {**metadata, "state_dict": nested["model"], "optimizer_states": optimizers}


def _with_numbered_params(saved: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state with numbers in the place of parameter names, as torch has it."""
    names = [name for group in saved["param_groups"] for name in group["params"]]
    number = {name: at for at, name in enumerate(names)}
    return {
        "state": {number.get(name, name): values for name, values in saved["state"].items()},
        "param_groups": [
            {**group, "params": [number[name] for name in group["params"]]} for group in saved["param_groups"]
        ],
    }


FORMAT = LightningFormat()
