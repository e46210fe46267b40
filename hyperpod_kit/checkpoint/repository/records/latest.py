"""LATEST: a hint at the newest commit, so that thousands of attempts on S3 are not listed to find one.

It may be old, torn, absent or another root's: whoever uses it checks what it says, and lists everything in doubt.
"""

from __future__ import annotations

import contextlib
from typing import Optional

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import CheckpointError

FORMAT = "hpk-latest/1"


def try_write(store: Store, checkpoint_id: str) -> None:
    """Write LATEST with the id of the newest commit. Raise nothing: a hint that cannot be written is omitted.

    Where nothing can be overwritten the first one stays: it is old, and still proves that something was
    committed.
    """
    body = manifest.seal_json({"format": FORMAT, "attempt": checkpoint_id})
    failpoint("latest.before")
    with contextlib.suppress(OSError, CheckpointError):
        if store.capabilities.overwrite:
            store.overwrite_non_atomically(layout.LATEST_FILE, body)
        elif not store.exists(layout.LATEST_FILE):
            store.create(layout.LATEST_FILE, body)
    failpoint("latest.after")


def read(store: Store) -> Optional[layout.CheckpointId]:
    """Return the checkpoint id in LATEST; None when there is no valid hint. Raise OSError when it cannot be
    read."""
    try:
        body = manifest.parse_sealed_json(store.read(layout.LATEST_FILE), layout.LATEST_FILE)
    except (FileNotFoundError, CheckpointError):
        return None
    if body.get("format") == FORMAT:
        return layout.parse_checkpoint_id(str(body.get("attempt")))
    return None
