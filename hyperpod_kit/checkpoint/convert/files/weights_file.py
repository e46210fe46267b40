"""A model's tensors as safetensors, alone or in a directory that `from_pretrained` reads: read from the checkpoint
straight into the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.atomic_output import directory_after_rename
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.convert.files import scratch_files
from hyperpod_kit.checkpoint.convert.files.byte_progress import CountedBytes, Progress, no_progress
from hyperpod_kit.checkpoint.convert.files.foreign_format import ForeignFormat, WrittenExport
from hyperpod_kit.checkpoint.convert.files.safetensors_files import PRETRAINED, WEIGHTS
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.restore import gathered_tensors
from hyperpod_kit.checkpoint.state.tensors import per_rank_name
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.untrusted import by_descriptor

LAYOUT = "huggingface"
"""Key of `extra` under which an adapter keeps what `from_pretrained` reads beside tensors: {"files": {name: text},
"names": our name of an adapter's tensor -> PEFT's}."""
_PER_RANK_MODEL = per_rank_name(0, "model.")


class WeightsFormat(ForeignFormat):
    """A format that has the tensors of a model alone; without a model, all tensors."""

    can_import = True
    can_export = True

    def exported_names(self, tree: Mapping[str, Any], stored_names: set[str]) -> set[str]:
        names = super().exported_names(tree, stored_names)
        return set(model_names(names)) or names


def write(
    store: Store, checkpoint_id: str, path: Path, *, as_directory: bool = False, progress: Progress = no_progress
) -> WrittenExport:
    """Make the file `path`, or a directory that `from_pretrained` reads. A tied tensor stands under its first name;
    without a model all tensors that are not another rank's own are taken.

    What is at `path` goes first: a checkpoint that turned out damaged when a part of it was written. Raises UsageError
    for one that does not say how its model is made, HyperpodKitError for what cannot be written, and for what cannot be
    read StorageUnreadable, CheckpointError, DigestUnavailable, OSError.
    """
    body = verify.read_manifest(store, checkpoint_id)
    tree = extra_state.merge_stage_trees(verify.read_verified_small_file(store, checkpoint_id, body.extra))
    with reshard.open_checkpoint(store, checkpoint_id, body) as checkpoint:
        rows = checkpoint.read_piece_rows()
        stored_names = set(codec.tensor_names(tree)) or set(rows)
        names = model_names(stored_names) or {name: name for name in stored_names}
        file = path
        if as_directory:
            pretrained = files_and_names_for_from_pretrained(checkpoint_id, tree)
            adapter_names = pretrained.get("names") or {}
            file = path / WEIGHTS
            if adapter_names:
                file = path / "adapter_model.safetensors"
                full_names = {short: name for name, short in names.items()}
                names = {full_names[short]: peft_name for short, peft_name in adapter_names.items()}
            _recreate_directory_with_texts(path, pretrained["files"])
        counted = CountedBytes(body.total_bytes, progress)
        tensors = gathered_tensors.read_full_tensors_alone(
            checkpoint, rows, names, scratch_files.safetensors_allocator(file, names), counted
        )
    size = sum(tensor.nbytes for tensor in tensors.values())
    return WrittenExport(checkpoint_id, body.step, len(tensors), size, count_per_rank_model_tensors(tensors))


def count_per_rank_model_tensors(names: Iterable[str]) -> int:
    """Count the model's tensors that are each rank's own, so that rank 0's stand for all."""
    return sum(name.startswith(_PER_RANK_MODEL) for name in names)


def model_names(stored_names: set[str]) -> dict[str, str]:
    """Return, for each of the model's tensors, its name in the model, by its stored name."""
    names: dict[str, str] = {}
    for name in stored_names:
        for prefix in ("model.", _PER_RANK_MODEL):
            if name.startswith(prefix):
                names[name] = name[len(prefix) :]
    return names


def files_and_names_for_from_pretrained(checkpoint_id: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files and names that `from_pretrained` needs, as LAYOUT has it. Raise UsageError where the
    checkpoint lacks them."""
    extra: Any = codec.decode(tree.get("extra", {}), lambda _: None, plain=True)  # type: ignore[arg-type, return-value]
    if LAYOUT in extra:
        return dict(extra[LAYOUT])
    if PRETRAINED in extra:
        return {"files": extra[PRETRAINED]}
    raise UsageError(
        f"{checkpoint_id} has no description of its model: it was not written by the Hugging Face Trainer",
        hint="--to safetensors; AutoModel.from_config(...).load_state_dict(...)",
    )


def _recreate_directory_with_texts(path: Path, files: Mapping[str, str]) -> None:
    """Make the directory anew and write its text files. Raise HyperpodKitError."""
    try:
        if path.is_dir():
            by_descriptor.remove_tree(path)
        by_descriptor.make_directory(path)
        for name, text in files.items():
            by_descriptor.write_text(path / os.path.basename(name), text)
    except OSError as err:
        raise HyperpodKitError(f"cannot write {directory_after_rename(path) / path.name}: {err.strerror}") from err
