"""`<attempt>.BAD`: a restore or a check has proved that this attempt is damaged, so nobody needs to read it again.

Written for bytes that are not the bytes that were sealed, never for a read that failed or a digest that cannot be
computed here. A tombstone saves time and decides nothing: when nothing else is valid, what it marks is verified anew.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Optional

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import CheckpointError, DigestMismatch

FORMAT = "hpk-bad/1"


def proves_damage(err: BaseException) -> bool:
    """Return whether an error of a verification proves that the checkpoint is damaged for good."""
    return isinstance(err, DigestMismatch)


def write(store: Store, checkpoint_id: str, reason: str) -> None:
    """Write the tombstone; one that is there stays. Raises OSError."""
    failpoint("tombstone.before")
    body = {
        "format": FORMAT,
        "attempt": checkpoint_id,
        "reason": reason,
        "host": socket.gethostname(),
        "time": manifest.now(),
    }
    with contextlib.suppress(FileExistsError):
        store.create(layout.tombstone_file(checkpoint_id), manifest.seal_json(body))
    failpoint("tombstone.after")


def read_damage_reason(store: Store, checkpoint_id: str) -> Optional[str]:
    """Return why the checkpoint is damaged; None when it is not marked, or the tombstone itself is torn or
    another's.

    Raise OSError.
    """
    name = layout.tombstone_file(checkpoint_id)
    try:
        body = manifest.parse_sealed_json(store.read(name), name)
    except (FileNotFoundError, CheckpointError):
        return None
    if body.get("format") != FORMAT or body.get("attempt") != checkpoint_id:
        return None
    return str(body.get("reason"))
