"""What an export would write, without reading a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.convert.formats import weights_file
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import UsageError


class ExportPreview(NamedTuple):
    """`bytes` are those of the tensors that the export would have."""

    checkpoint_id: str
    step: int
    tensors: int
    bytes: int


LIGHTNING = "lightning"
"""Name of the object under which an adapter keeps what Lightning's checkpoints say beside weights and optimizers."""
FORMAT_REQUIREMENTS: Mapping[str, tuple[Callable[[Mapping[str, Any]], bool], str, str]] = {
    "deepspeed": (lambda tree: {"words", "files"} <= tree.keys(), "DeepSpeed's adapter", "--to torch or --to dcp"),
    "lightning": (lambda tree: f"objects.{LIGHTNING}" in tree, "Lightning's Trainer", "--to torch or --to safetensors"),
    "megatron": (lambda tree: "boxes" in tree, "Megatron-core", "--to torch or --to dcp"),
}
"""Formats that only one adapter's checkpoints have: whether it is one, whose they are, and what else to type."""


def require_format_source(to: str, checkpoint_id: str, tree: Mapping[str, Any]) -> None:
    """Raise UsageError for a checkpoint that lacks what the format needs."""
    if to in FORMAT_REQUIREMENTS:
        matches, producer, instead = FORMAT_REQUIREMENTS[to]
        if not matches(tree):
            raise UsageError(f"{checkpoint_id} is not of {producer}", hint=instead)
    elif to == "huggingface":
        weights_file.files_and_names_for_from_pretrained(checkpoint_id, tree)


def preview_export(store: Store, checkpoint_id: str, to: str) -> ExportPreview:
    """Return what an export would write, without reading a tensor. Raise UsageError, StorageUnreadable,
    CheckpointError, OSError."""
    body = verify.read_manifest(store, checkpoint_id)
    extra = verify.read_verified_small_file(store, checkpoint_id, body.extra)
    tree = (
        extra_state.read(store, checkpoint_id, extra, 0) if to == "deepspeed" else extra_state.merge_stage_trees(extra)
    )
    require_format_source(to, checkpoint_id, tree)
    with reshard.open_checkpoint(store, checkpoint_id, body) as checkpoint:
        rows = checkpoint.read_piece_rows()
        names = set(rows) if to == "deepspeed" else set(codec.tensor_names(tree)) or set(rows)
        if to in ("huggingface", "safetensors"):
            names = set(weights_file.model_names(names) or names)
        specs = [rows[name][0].spec for name in names]
    size = sum(TensorSpec(spec.name, spec.dtype, tuple(spec.full_shape)).nbytes for spec in specs)
    return ExportPreview(checkpoint_id, body.step, len(names), size)
