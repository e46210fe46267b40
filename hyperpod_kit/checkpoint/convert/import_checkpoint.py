"""A checkpoint of another program as the first one of a root."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hyperpod_kit.checkpoint.convert.files import new_root
from hyperpod_kit.checkpoint.convert.files.byte_progress import CountedBytes, Progress, no_progress
from hyperpod_kit.checkpoint.convert.files.byte_sources import closing_imported_files
from hyperpod_kit.checkpoint.convert.known_formats import load_formats
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format.manifest import Manifest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.errors import Absent, CheckpointError, UsageError

_FORMATS = {name: foreign_format for name, foreign_format in load_formats().items() if foreign_format.can_import}
SOURCES = tuple(sorted(_FORMATS))


@dataclass(frozen=True)
class ImportedCheckpoint:
    """`ranks`: how many it is for, or in how many shards it lies. `unchecked`: how many files, of DCP how many tensors'
    boxes, were without check sums, so that a changed byte of theirs would not have been seen. `already`: it was there,
    imported from the same files. `attempt`: empty after a dry run."""

    attempt: str
    step: int
    ranks: int
    tensors: int
    bytes: int
    unchecked: int = 0
    already: bool = False


def import_checkpoint(
    source: str | os.PathLike[str],
    kind: str,
    store_or_root: StoreOrRoot,
    *,
    tag: str | None = None,
    step: int | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> ImportedCheckpoint:
    """Commit what lies at `source` to the root `store_or_root`, which must not have a checkpoint but the one that this
    makes: then nothing is done.

    `kind`, one of SOURCES: `dcp`, the directory of a `torch.distributed.checkpoint.save`; `deepspeed`, the `save_dir`
    of plain DeepSpeed's `engine.save_checkpoint` under ZeRO 1 to 3, of which `tag` names the one that counts in place
    of its file `latest`; `huggingface`, a directory that `from_pretrained` reads; `megatron`, a checkpoint_dir of
    Megatron-core's `dist_checkpointing.save`; `safetensors` and `torch`, a file, of a model's tensors or of what
    `torch.save` was given. `step` in place of the one that the source says, or that its name ends in (deepspeed: that
    of the tag). All files are looked at before anything is written, and the bytes are proved where they have check
    sums. Nothing counts before all is written. 16 MB of a tensor are in memory at a time, and what is no tensor.
    With `dry_run` nothing is written, and tensors whose check sums lie beside them are not read.
    Raises UsageError, CheckpointError, RunIsOwned, OSError.
    """
    if kind not in SOURCES:
        raise UsageError(f"cannot import from {kind!r}: expected one of {', '.join(SOURCES)}")
    foreign_format = _FORMATS[kind]
    if tag is not None and not foreign_format.has_tags:
        raise UsageError(f"--tag is for --from deepspeed, not for {kind}", hint="give the directory or file itself")
    if step is not None and step < 0:
        raise UsageError(f"step is {step}, expected 0 or more")
    store = as_store(store_or_root)
    path = require_local_path(source)
    if not path.exists():
        raise Absent(f"no such file or directory: {path}", hint=f"ls {path.parent}")
    with closing_imported_files() as files:
        inspected = foreign_format.inspect(files, path, tag)
        if step is not None:
            chosen_step = step
        elif inspected.step is not None:
            chosen_step = inspected.step
        else:
            chosen_step = _require_step_in_name(path)
        source_id = fingerprint_by_names_sizes_times(inspected.files_directory or path, kind, chosen_step)
        existing = find_import_or_require_empty_root(store, source_id)
        if existing is not None:
            checkpoint_id, body = existing
            return ImportedCheckpoint(
                checkpoint_id, chosen_step, body.world, body.tensors, inspected.bytes, inspected.unchecked, already=True
            )
        if dry_run:
            imported = new_root.preview(inspected.ranks, inspected.parts)
        else:
            versions = {"writer": f"import-{kind}", SOURCE: source_id}
            counted = CountedBytes(inspected.bytes, progress)
            imported = new_root.write_and_commit(
                store, chosen_step, inspected.ranks, inspected.parts, versions, counted
            )
    return ImportedCheckpoint(
        imported.checkpoint_id, chosen_step, inspected.ranks, imported.tensors, inspected.bytes, inspected.unchecked
    )


def _require_step_in_name(path: Path) -> int:
    """The last number in its name. Raises UsageError where there is none."""
    numbers = re.findall(r"\d+", path.resolve().name)
    if not numbers:
        raise UsageError(f"{path} has no step in its name", hint="--step NUMBER")
    return int(numbers[-1])


# Which source a checkpoint was imported from: so that an import that is done again finds its own.

SOURCE = "source"
"""Key of it in a manifest's `versions`."""


def require_local_path(source: str | os.PathLike[str]) -> Path:
    """Return the source as a path. Raise UsageError for a URL."""
    if "://" in os.fspath(source):
        raise UsageError(
            f"{os.fspath(source)} is not a path in a file system, and an import reads files",
            hint="copy it to a file system, or mount its bucket; --out may be s3://bucket/prefix",
        )
    return Path(source)


def fingerprint_by_names_sizes_times(source: Path, kind: str, step: int) -> str:
    """Return a digest of the names, sizes and times of what lies at `source` (of a directory what is right in
    it). Raise OSError."""
    resolved = source.resolve()
    files = [resolved]
    if resolved.is_dir():
        files = sorted(path for path in resolved.iterdir() if path.is_file())
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([str(resolved), kind, step, facts]).encode()).hexdigest()


def find_import_or_require_empty_root(store: Store, source_id: str) -> tuple[str, Manifest] | None:
    """Return the checkpoint that was imported from `source_id`, None for a root in which nothing was ever
    committed. Raise UsageError for a root that has others alone, OSError."""
    committed = [entry.checkpoint_id for entry in catalog.iter_checkpoints_newest_first(store) if entry.committed]
    for checkpoint_id in reversed(committed):  # the first one, where there is one
        try:
            body = verify.read_manifest(store, checkpoint_id)
        except CheckpointError:
            continue
        if body.versions.get(SOURCE) == source_id:
            return checkpoint_id, body
    if committed:
        raise UsageError(
            f"{store.url} already has checkpoints, for example {committed[0]}", hint="give a root without checkpoints"
        )
    selection.require_no_lost_commits(store)
    return None
