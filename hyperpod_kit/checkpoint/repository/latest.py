"""LATEST: a hint at the newest commit, so that thousands of attempts on S3 are not listed to find one.

It may be old, torn, absent or another root's: whoever uses it checks what it says, and lists everything in doubt.
"""

from __future__ import annotations

import contextlib
from typing import Optional

from hyperpod_kit.checkpoint.repository import layout, manifest
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError

FORMAT = "hpk-latest/1"


def write(store: Store, checkpoint_id: str) -> None:
    """Say that `checkpoint_id` was committed. A hint that cannot be written is none: raises nothing.

    Where nothing is overwritten the first one stays: it is old, and still proves that something was committed.
    """
    body = manifest.seal_json({"format": FORMAT, "attempt": checkpoint_id})
    failpoint("latest.before")
    with contextlib.suppress(OSError, CheckpointError):
        if store.capabilities.overwrite:
            store.replace(layout.LATEST_FILE, body)
        elif not store.exists(layout.LATEST_FILE):
            store.create(layout.LATEST_FILE, body)
    failpoint("latest.after")


def read(store: Store) -> Optional[layout.CheckpointId]:
    """What the hint names; None when there is none that makes sense. Raises OSError when that cannot be told."""
    try:
        body = manifest.open_json(store.read(layout.LATEST_FILE), layout.LATEST_FILE)
    except (FileNotFoundError, CheckpointError):
        return None
    if body.get("format") == FORMAT:
        return layout.parse_checkpoint_id(str(body.get("attempt")))
    return None
