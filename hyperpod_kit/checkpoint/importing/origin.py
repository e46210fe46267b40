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


def place_of(source: str | os.PathLike[str]) -> Path:
    """Raises UsageError for a URL."""
    if "://" in os.fspath(source):
        raise UsageError(
            f"{os.fspath(source)} is no place in a file system, and an import reads files",
            hint="copy it here, or mount its bucket (docs/mounts.md); --output may be s3://bucket/prefix",
        )
    return Path(source)


def identity(place: Path, kind: str, step: int) -> str:
    """Of what lies at `place` (of a directory what is right in it): names, sizes and times. Raises OSError."""
    real = place.resolve()
    files = [real] if not real.is_dir() else sorted(path for path in real.iterdir() if path.is_file())
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([str(real), kind, step, facts]).encode()).hexdigest()


def made_from(store: Store, of: str) -> tuple[str, Manifest] | None:
    """The attempt that was imported from `of`. Raises UsageError for a root that has others alone, OSError."""
    committed = [entry.attempt for entry in catalog.newest_first(store) if entry.committed]
    for attempt in reversed(committed):  # the first one, where there is one
        try:
            body = verify.read_manifest(store, attempt)
        except CheckpointError:
            continue
        if body.versions.get(SOURCE) == of:
            return attempt, body
    if committed:
        raise UsageError(f"{store.url} has checkpoints, {committed[0]} for one", hint="name a root that has none")
    selection.require_no_lost_commits(store)
    return None
