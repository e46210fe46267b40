"""A committed checkpoint in another format: DCP's own, safetensors, torch.save, or a framework's."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.atomic_output import atomic_output
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.convert.files import scratch_files
from hyperpod_kit.checkpoint.convert.files.byte_progress import CountedBytes, Progress, no_progress
from hyperpod_kit.checkpoint.convert.formats import deepspeed, preview, weights_file
from hyperpod_kit.checkpoint.convert.formats.preview import LIGHTNING
from hyperpod_kit.checkpoint.dcp import reshard, subclass_parts
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.checkpoint.restore import gathered_tensors
from hyperpod_kit.checkpoint.restore.gathered_tensors import TensorAllocator
from hyperpod_kit.errors import Absent, UsageError
from hyperpod_kit.untrusted import by_descriptor

FORMATS = ("dcp", "deepspeed", "huggingface", "lightning", "megatron", "safetensors", "torch")

Taken = TypeVar("Taken")
Rejections = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Exported:
    """`rejected`: newer checkpoints that were passed over, and why. `own`: how many of the model's tensors are each
    rank's own, so that only rank 0's are here."""

    attempt: str
    step: int
    tensors: int
    bytes: int
    rejected: Rejections = ()
    own: int = 0


def export(
    store_or_root: StoreOrRoot,
    to: str,
    dest: str | os.PathLike[str],
    *,
    attempt: str | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Exported:
    """Write a checkpoint to `dest`, which must not exist; it appears complete and synced, or not at all.

    Every byte is verified while it is read. Without `attempt` the newest valid checkpoint is taken. `dcp` makes a
    directory and `torch` a file with the nested state (`model`, `optimizer`, ... of all ranks, of what is each rank's
    own rank 0's); `safetensors` a file with the model's tensors, a tied one under its first name; `huggingface` a
    directory that `from_pretrained` reads, of a checkpoint that a CheckpointedTraining saved; `lightning` a file that
    `Trainer.fit(ckpt_path=)` reads, of one that a CheckpointedFit saved; `megatron` a directory that Megatron-core
    reads, and `deepspeed` one that DeepSpeed's `load_checkpoint` reads, with all ranks' partitions, each of one that
    its adapter saved. What it holds of a checkpoint are pages of files on the disk of `dest`, which the system can take
    back: as much room as the checkpoint has is needed there for the time, but for `safetensors` and `huggingface`;
    twice that for `megatron`, and as much as one file of one rank for `deepspeed`. `progress` hears of what was read
    and proved. With `dry_run` nothing is written and no tensor is read.
    Raises UsageError, NoCheckpoint, NoValidCheckpoint, StorageUnreadable, CheckpointError, DigestUnavailable, OSError.
    """
    if to not in FORMATS:
        raise UsageError(f"cannot export to {to!r}: expected one of {', '.join(FORMATS)}")
    target = Path(dest)
    if target.exists():
        raise UsageError(f"{target} exists", hint="name a place that does not")
    if not target.parent.is_dir():
        raise Absent(f"{target.parent} is no directory", hint=f"mkdir -p {target.parent}")
    store = as_store(store_or_root)
    if dry_run:
        planned, rejected = _read_given_or_newest(store, attempt, lambda name: preview.preview_export(store, name, to))
        return Exported(*planned, rejected)
    if to == "deepspeed":
        return _export_deepspeed(store, target, attempt, progress)
    if to in ("huggingface", "safetensors"):
        return _export_weights(store, to, target, attempt, progress)
    with atomic_output(target) as temporary_path, scratch_files.scratch_allocator(temporary_path) as allocate:
        state, rejected = _read_given_or_newest(
            store, attempt, lambda name: _read_state(store, name, to, allocate, progress)
        )
        _WRITERS[to](state, temporary_path, allocate)
    per_rank_count = weights_file.count_per_rank_model_tensors(state.tensors)
    return Exported(state.checkpoint_id, state.step, len(state.tensors), state.bytes, rejected, per_rank_count)


def lightning_checkpoint(store_or_root: StoreOrRoot, *, attempt: str | None = None) -> dict[str, Any]:
    """Return what Lightning would read from a file of its own: of the newest valid checkpoint, or of `attempt`.
    Per-rank state is rank 0's. Raise as `export` does."""
    store = as_store(store_or_root)
    return _lightning_state(
        _read_given_or_newest(store, attempt, lambda name: _read_state(store, name, "lightning"))[0]
    )


def _read_given_or_newest(
    store: Store, checkpoint_id: str | None, read: Callable[[str], Taken]
) -> tuple[Taken, Rejections]:
    """Return what `read` makes of that checkpoint, or of the newest that it does not reject, and which were
    rejected."""
    if checkpoint_id is not None:
        return read(checkpoint_id), ()
    loaded, selected = selection.load_newest_accepted(store, read)
    return loaded, selected.rejected


def _export_deepspeed(store: Store, target: Path, checkpoint_id: str | None, progress: Progress) -> Exported:
    with atomic_output(target) as temporary_path, scratch_files.scratch_allocator(temporary_path) as allocate:
        written, rejected = _read_given_or_newest(
            store, checkpoint_id, lambda name: deepspeed.write(store, name, temporary_path, allocate, progress)
        )
    return Exported(*written, rejected)


@dataclass(frozen=True)
class _ExportedState:
    checkpoint_id: str
    step: int
    bytes: int
    nested: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def _read_state(
    store: Store, checkpoint_id: str, to: str, allocate: TensorAllocator | None = None, progress: Progress = no_progress
) -> _ExportedState:
    """All of a checkpoint that is not another rank's own, verified."""
    body = verify.read_manifest(store, checkpoint_id)
    tree = extra_state.merge_stage_trees(verify.read_verified_small_file(store, checkpoint_id, body.extra))
    preview.require_format_source(to, checkpoint_id, tree)
    with reshard.open_checkpoint(store, checkpoint_id, body) as checkpoint:
        rows = checkpoint.read_piece_rows()
        names = set(codec.tensor_names(tree)) or set(rows)  # of what a Writer made the tree names no tensors
        tensors = gathered_tensors.read_full_tensors_alone(
            checkpoint, rows, names, allocate, CountedBytes(body.total_bytes, progress)
        )
    if "dcp" in tree:
        nested = _nested_from_dcp_without_pickles(tree["dcp"], tensors)
    else:
        nested = {name: codec.decode(part, tensors.__getitem__, plain=True) for name, part in tree.items()}
    return _ExportedState(checkpoint_id, body.step, body.total_bytes, nested, tensors)


def _nested_from_dcp_without_pickles(dcp_tree: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What `dcp.save` was given, less the items that are pickles: those are nobody's to open unasked."""
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    plain_tensors = {name: tensor for name, tensor in tensors.items() if name not in dcp_tree["bytes"]}
    paths = {name: tuple(dcp_tree["paths"].get(name, (name,))) for name in plain_tensors}
    for name, record in subclass_parts.subclass_records_in(dcp_tree).items():
        paths.update(subclass_parts.part_paths(record, tuple(dcp_tree["paths"].get(name, (name,)))))
    return dict(unflatten_state_dict(plain_tensors, paths))


def _write_dcp(state: _ExportedState, path: Path, _: TensorAllocator) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no process group is there is what is meant
        save(state.nested, storage_writer=FileSystemWriter(str(path)), no_dist=True)


def _torch_save_file(value: object, path: Path) -> None:
    with by_descriptor.open_stream_for_writing(path, "wb") as out:
        torch.save(value, out)


def _write_megatron(state: _ExportedState, path: Path, allocate: TensorAllocator) -> None:
    from hyperpod_kit.checkpoint.convert.formats import megatron

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # as above
        megatron.write(state.nested, path, allocate)


def _export_weights(store: Store, to: str, target: Path, checkpoint_id: str | None, progress: Progress) -> Exported:
    """The model's tensors alone, straight into the file of safetensors that they make."""
    with atomic_output(target) as temporary_path:
        written, rejected = _read_given_or_newest(
            store, checkpoint_id, lambda name: weights_file.write(store, name, to, temporary_path, progress)
        )
    return Exported(*written[:-1], rejected, written.per_rank)


def _lightning_state(state: _ExportedState) -> dict[str, Any]:
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


_WRITERS: dict[str, Callable[[_ExportedState, Path, TensorAllocator], None]] = {
    "dcp": _write_dcp,
    "lightning": lambda state, path, _: _torch_save_file(_lightning_state(state), path),
    "megatron": _write_megatron,
    "torch": lambda state, path, _: _torch_save_file(state.nested, path),
}
"""Those that write what is in memory: torch or Megatron's format, a file or a directory."""
