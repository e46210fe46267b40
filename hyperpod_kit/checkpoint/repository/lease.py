"""Leases: who reads a checkpoint says so, and for how long, and retention leaves it alone.

A lease is one new file; its end is in its name, so a listing says all. It is renewed by a second one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from typing import Optional, Set

from hyperpod_kit.checkpoint.repository import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError

FORMAT = "hpk-lease/1"
GRACE = 600
"""Seconds for which a lease counts after its end: clocks of machines differ."""

_NAME = re.compile(r"(.+)\.([0-9]{10,18})-[0-9a-f]{8}\.json")


class Lease:
    """A checkpoint that is not deleted until `release`, or `seconds` after it was taken or renewed."""

    def __init__(self, store: Store, attempt: str, seconds: float) -> None:
        self._store = store
        self._attempt = attempt
        self._seconds = seconds
        self._name: Optional[str] = None
        self.renew()

    def renew(self) -> None:
        """Begin the time anew. Raises OSError."""
        until = int(time.time() + self._seconds) + 1
        name = f"{layout.LEASES}/{self._attempt}.{until:010d}-{secrets.token_hex(4)}.json"
        body = {
            "format": FORMAT,
            "attempt": self._attempt,
            "until": until,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._store.create(name, manifest.seal_json(body))
        self.release()
        self._name = name

    def release(self) -> None:
        """Give it back. Where nothing can be deleted, the lease ends by itself."""
        name, self._name = self._name, None
        if name is not None:
            with contextlib.suppress(OSError, CheckpointError):
                self._store.delete(name)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take(store: Store, attempt: str, seconds: float) -> Optional[Lease]:
    """A lease, or None where the root cannot be written: then nobody can be kept from deleting."""
    try:
        return Lease(store, attempt, seconds)
    except (OSError, CheckpointError):
        return None


def held(store: Store, *, now: Optional[float] = None) -> Set[str]:
    """The attempts that somebody reads. Raises OSError."""
    return {attempt for attempt, until, _ in _all(store) if until + GRACE >= _now(now)}


def known(store: Store) -> Set[str]:
    """The attempts that somebody reads, or has read since the last sweep. Raises OSError."""
    return {attempt for attempt, _, _ in _all(store)}


def sweep(store: Store, *, now: Optional[float] = None) -> None:
    """Remove what has ended. Raises Unsupported, OSError."""
    for _, until, name in _all(store):
        if until + GRACE < _now(now):
            store.delete(f"{layout.LEASES}/{name}")


def _now(now: Optional[float]) -> float:
    return time.time() if now is None else now


def _all(store: Store) -> Set[tuple[str, int, str]]:
    """(attempt, end, file name) of each; names that are no lease's are passed over."""
    matches = ((_NAME.fullmatch(name), name) for name in store.list(layout.LEASES))
    return {(match.group(1), int(match.group(2)), name) for match, name in matches if match}
