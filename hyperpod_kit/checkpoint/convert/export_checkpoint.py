"""A committed checkpoint in another format: DCP's own, safetensors, torch.save, or a framework's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hyperpod_kit.checkpoint.atomic_output import atomic_output
from hyperpod_kit.checkpoint.convert.files.byte_progress import Progress, no_progress
from hyperpod_kit.checkpoint.convert.files.foreign_format import (
    ExportSource,
    ForeignFormat,
    Rejections,
    WrittenExport,
)
from hyperpod_kit.checkpoint.convert.known_formats import load_formats
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.errors import Absent, UsageError

_FORMATS = {name: foreign_format for name, foreign_format in load_formats().items() if foreign_format.can_export}
FORMATS = tuple(sorted(_FORMATS))


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
        raise UsageError(f"{target} exists", hint="choose a path that does not exist")
    if not target.parent.is_dir():
        raise Absent(f"{target.parent} is not a directory", hint=f"mkdir -p {target.parent}")
    foreign_format = _FORMATS[to]
    source = ExportSource(as_store(store_or_root), attempt, progress)
    if dry_run:
        written = source.read(lambda name: _preview(source.store, name, foreign_format))
    else:
        with atomic_output(target) as temporary_path:
            written = foreign_format.write(source, temporary_path)
    return Exported(
        written.checkpoint_id, written.step, written.tensors, written.bytes, source.rejected, written.per_rank
    )


def _preview(store: Store, checkpoint_id: str, foreign_format: ForeignFormat) -> WrittenExport:
    """Return what an export would write, without reading a tensor. Raise UsageError, StorageUnreadable,
    CheckpointError, OSError."""
    body = verify.read_manifest(store, checkpoint_id)
    extra = verify.read_verified_small_file(store, checkpoint_id, body.extra)
    tree = foreign_format.read_tree(store, checkpoint_id, extra)
    foreign_format.require_exportable(checkpoint_id, tree)
    with reshard.open_checkpoint(store, checkpoint_id, body) as checkpoint:
        rows = checkpoint.read_piece_rows()
        specs = [rows[name][0].spec for name in foreign_format.exported_names(tree, set(rows))]
    size = sum(TensorSpec(spec.name, spec.dtype, tuple(spec.full_shape)).nbytes for spec in specs)
    return WrittenExport(checkpoint_id, body.step, len(specs), size)
