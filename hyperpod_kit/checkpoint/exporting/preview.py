"""What an export would write, without reading a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hyperpod_kit.checkpoint import codec
from hyperpod_kit.checkpoint.agent import extra_state
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.exporting import to_weights
from hyperpod_kit.checkpoint.repository import verify
from hyperpod_kit.checkpoint.repository.shard import TensorSpec
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import UsageError


class ExportLook(NamedTuple):
    """`bytes` are those of the tensors that the export would have."""

    attempt: str
    step: int
    tensors: int
    bytes: int


LIGHTNING = "lightning"
"""Name of the object under which an adapter keeps what Lightning's checkpoints say beside weights and optimizers."""
NEEDED: Mapping[str, tuple[Callable[[Mapping[str, Any]], bool], str, str]] = {
    "deepspeed": (lambda tree: {"words", "files"} <= tree.keys(), "DeepSpeed's adapter", "--to torch or --to dcp"),
    "lightning": (lambda tree: f"objects.{LIGHTNING}" in tree, "Lightning's Trainer", "--to torch or --to safetensors"),
    "megatron": (lambda tree: "boxes" in tree, "Megatron-core", "--to torch or --to dcp"),
}
"""Formats that only one adapter's checkpoints have: whether it is one, whose they are, and what else to type."""


def refuse_of_others(to: str, attempt: str, tree: Mapping[str, Any]) -> None:
    """Raises UsageError for a checkpoint that has not what the format needs."""
    if to in NEEDED:
        is_one, whose, instead = NEEDED[to]
        if not is_one(tree):
            raise UsageError(f"{attempt} is not of {whose}", hint=instead)
    elif to == "huggingface":
        to_weights.layout_of(attempt, tree)


def look(store: Store, attempt: str, to: str) -> ExportLook:
    """Raises UsageError, StorageUnreadable, CheckpointError, OSError."""
    body = verify.read_manifest(store, attempt)
    extra = verify.read_extra(store, attempt, body.extra)
    tree = extra_state.read(store, attempt, extra, 0) if to == "deepspeed" else extra_state.merge_trees(extra)
    refuse_of_others(to, attempt, tree)
    with reshard.opened(store, attempt, body) as opened:
        rows = opened.rows()
        names = set(rows) if to == "deepspeed" else set(codec.tensor_names(tree)) or set(rows)
        if to in ("huggingface", "safetensors"):
            names = set(to_weights.model_names(names) or names)
        firsts = [rows[name][0].spec for name in names]
    size = sum(TensorSpec(spec.name, spec.dtype, tuple(spec.full_shape)).nbytes for spec in firsts)
    return ExportLook(attempt, body.step, len(names), size)
