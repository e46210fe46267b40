"""The write path on storage: files are created, never renamed, overwritten or deleted.

Order of a commit: the attempt's directory, its shards (every agent its own), extra.json, MANIFEST.json. Each file is
synced before the next begins; only the last one makes the checkpoint exist.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from typing import Any, Dict, NamedTuple, Optional

from hyperpod_kit.errors import CheckpointError, RunIsOwned

from . import catalog, latest, layout, manifest
from .failpoint import failpoint
from .store.base import Store
from .store.open import Where, as_store


class RunIdentity(NamedTuple):
    """Who writes to a root: the name that people gave the run, and an id that no other root has."""

    run: str
    run_id: str


def open_root(where: Where, run: Optional[str] = None) -> RunIdentity:
    """Make the root and RUN.json if they are not there, and return whose root it is.

    Raises RunIsOwned when another run writes here, CheckpointError when RUN.json is damaged, OSError.
    """
    store = as_store(where)
    found = _read_run(store)
    if found is None:
        name = run or os.path.basename(store.url.rstrip("/")) or "run"
        body = {"format": layout.RUN_FORMAT, "run": name, "id": uuid.uuid4().hex, "created": manifest.now()}
        # FileExistsError: somebody else was first, so theirs counts.
        with contextlib.suppress(FileExistsError):
            store.create(layout.RUN_FILE, manifest.seal_json(body))
        found = _read_run(store)
    if found is None:
        raise CheckpointError(f"{store.url}/{layout.RUN_FILE} vanished while it was written")
    if run is not None and found.run != run:
        raise RunIsOwned(f"{store.url} belongs to run {found.run!r}, this is run {run!r}",
                         hint="give each run a root of its own")
    return found


def open_existing(where: Where) -> RunIdentity:
    """Whose root this is. Raises CheckpointError when it is not a checkpoint root (or its mount is gone), OSError."""
    store = as_store(where)
    found = _read_run(store)
    if found is None:
        raise CheckpointError(f"{store.url} has no {layout.RUN_FILE}: it is no checkpoint root, or its mount is gone")
    return found


def _read_run(store: Store) -> Optional[RunIdentity]:
    try:
        body = manifest.open_json(store.read(layout.RUN_FILE), layout.RUN_FILE)
    except FileNotFoundError:
        return None
    if body.get("format") != layout.RUN_FORMAT:
        raise CheckpointError(f"{store.url}/{layout.RUN_FILE} has format {body.get('format')!r}, "
                              f"expected {layout.RUN_FORMAT!r}")
    return RunIdentity(str(body["run"]), str(body["id"]))


def claim_epoch(where: Where, identity: RunIdentity, *, above: int, job: Dict[str, Any],
                first_seq: Optional[int] = None) -> int:
    """Take the next epoch, which nobody else has or will have: a file created exclusively. Raises OSError.

    `first_seq`: no save of this start will have a smaller seq. It spares later starts the listing of older attempts;
    who does not know it says nothing.
    """
    store = as_store(where)
    epoch = max(above, catalog.highest(store)[0]) + 1
    while True:
        body = {"format": layout.RUN_FORMAT, "id": identity.run_id, "epoch": epoch, "host": socket.gethostname(),
                "pid": os.getpid(), "job": job, "time": manifest.now()}
        if first_seq is not None:
            body["first_seq"] = first_seq
        try:
            store.create(layout.epoch_file(epoch), manifest.seal_json(body))
            failpoint("epoch.claimed")
            return epoch
        except FileExistsError:
            epoch += 1


def commit(where: Where, attempt: str, body: manifest.Manifest, extra: bytes, index: Optional[bytes] = None) -> None:
    """Write extra.json, index.bin when given, and then the manifest; last the hint LATEST. All shards must be durable.

    Raises FileExistsError, OSError; what fails after the manifest is no failure.
    """
    store = as_store(where)
    failpoint("commit.before_extra")
    store.create(f"{attempt}/{layout.EXTRA_FILE}", extra)
    failpoint("commit.before_index")
    if index is not None:
        store.create(f"{attempt}/{layout.INDEX_FILE}", index)
    failpoint("commit.before_manifest")
    store.create(f"{attempt}/{layout.MANIFEST_FILE}", body.encode())
    failpoint("commit.after_manifest")
    latest.write(store, attempt)
