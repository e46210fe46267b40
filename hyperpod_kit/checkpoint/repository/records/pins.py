"""Pins: checkpoints that a person wants to keep. `pins/<attempt>.json`; that it is there is all that counts."""

from __future__ import annotations

import contextlib
from typing import Set

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError, NoSuchCheckpoint

FORMAT = "hpk-pin/1"
_SUFFIX = ".json"


def require_committed(store: Store, checkpoint_id: str) -> None:
    """Raise NoSuchCheckpoint when that is no committed checkpoint, OSError."""
    if layout.parse_checkpoint_id(checkpoint_id) is None or not store.exists(f"{checkpoint_id}/{layout.MANIFEST_FILE}"):
        raise NoSuchCheckpoint(
            f"{checkpoint_id} is not a committed checkpoint below {store.url}",
            hint=f"hyperpod-kit checkpoint ls {store.url}",
        )


def pin(store: Store, checkpoint_id: str, reason: str = "") -> None:
    """Write a pin that keeps a committed checkpoint for good; pinning it twice is fine. Raise NoSuchCheckpoint
    when it is not there, OSError."""
    require_committed(store, checkpoint_id)
    body = {"format": FORMAT, "attempt": checkpoint_id, "reason": reason, "by": _user(), "time": manifest.now()}
    with contextlib.suppress(FileExistsError):
        store.create(f"{layout.PINS}/{checkpoint_id}{_SUFFIX}", manifest.seal_json(body))


def unpin(store: Store, checkpoint_id: str) -> None:
    """Delete the pin, which leaves the checkpoint to the policy again. Raise CheckpointError when it is not
    pinned, Unsupported, OSError."""
    if checkpoint_id not in pinned_checkpoints(store):
        raise CheckpointError(f"{checkpoint_id} is not pinned", hint=f"hyperpod-kit checkpoint ls {store.url}")
    store.delete(f"{layout.PINS}/{checkpoint_id}{_SUFFIX}")


def pinned_checkpoints(store: Store) -> Set[str]:
    """Return the checkpoints that are pinned. Raise OSError."""
    return {name[: -len(_SUFFIX)] for name in store.list(layout.PINS) if name.endswith(_SUFFIX)}


def _user() -> str:
    import getpass  # of who pins alone

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
