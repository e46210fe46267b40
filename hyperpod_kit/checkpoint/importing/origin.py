"""Which source a checkpoint was imported from: so that an import that is done again finds its own."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from hyperpod_kit.checkpoint.repository import catalog, selection, verify
from hyperpod_kit.checkpoint.repository.manifest import Manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError, UsageError

SOURCE = "source"
"""Key of it in a manifest's `versions`."""


def require_local_path(source: str | os.PathLike[str]) -> Path:
    """Return the source as a path. Raise UsageError for a URL."""
    if "://" in os.fspath(source):
        raise UsageError(
            f"{os.fspath(source)} is no place in a file system, and an import reads files",
            hint="copy it here, or mount its bucket (docs/mounts.md); --output may be s3://bucket/prefix",
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
        raise UsageError(f"{store.url} has checkpoints, {committed[0]} for one", hint="name a root that has none")
    selection.require_no_lost_commits(store)
    return None
