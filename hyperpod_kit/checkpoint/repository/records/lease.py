"""Leases: who reads a checkpoint says so, and for how long, and retention leaves it alone.

A lease is one new file; its end is in its name, so a listing says all. It is renewed by a second one.

The end is a moment of the reader's clock, and whoever deletes has another one. So it reads that moment once, when it
sees the lease for the first time, and from then on counts the seconds that pass: a clock that is set changes nothing,
and of a reader whose clock is hours behind each renewal counts for GRACE.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
import time
from typing import Dict, Iterable, NamedTuple, Optional, Set, Tuple

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError

FORMAT = "hpk-lease/1"
GRACE = 600.0
"""Seconds for which a lease counts after its end, and after it was seen first: clocks of machines differ."""

LONG_OVER = 86400.0
"""Seconds after its end from which a lease does not count, also for who sees it for the first time: no clocks differ so
much. No lease lasts longer, either."""

_PATIENCE = 5.0

_NAME = re.compile(r"(.+)\.([0-9]{10,18})-[0-9a-f]{8}\.json")


class Lease:
    """A checkpoint that is not deleted until `release`, or `seconds` after it was taken or renewed."""

    def __init__(self, store: Store, checkpoint_id: str, seconds: float) -> None:
        self._store = store
        self._checkpoint_id = checkpoint_id
        self._seconds = seconds
        self._name: Optional[str] = None
        self.renew()

    def renew(self) -> None:
        """Write a new lease file that lasts the full time again, and delete the former one. Raise OSError."""
        until = int(time.time() + self._seconds) + 1
        name = f"{layout.LEASES}/{self._checkpoint_id}.{until:010d}-{secrets.token_hex(4)}.json"
        body = {
            "format": FORMAT,
            "attempt": self._checkpoint_id,
            "until": until,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._store.create(name, manifest.seal_json(body))
        self._delete_lease_file()
        self._name = name

    def release(self) -> None:
        """Delete the lease file. Where nothing can be deleted, the lease ends by itself."""
        self._delete_lease_file()

    def _delete_lease_file(self) -> None:
        name, self._name = self._name, None
        if name is not None:
            with contextlib.suppress(OSError, CheckpointError):
                self._store.delete(name)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class KeptLease(Lease):
    """A lease that a thread renews thrice in its time, until `release`."""

    def __init__(self, store: Store, checkpoint_id: str, seconds: float) -> None:
        super().__init__(store, checkpoint_id, seconds)
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew_until_released, name="hpk-lease", daemon=True)
        self._renewing.start()

    def release(self) -> None:
        """Stop the renewing thread and delete the lease file."""
        if threading.current_thread() is not self._renewing:
            self._ended.set()
            # Not for ever: storage that hangs must not keep whoever has read enough.
            self._renewing.join(_PATIENCE)
        super().release()

    def _renew_until_released(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            # A file system that does not take it now is asked again; the last one still counts for a while.
            with contextlib.suppress(OSError, CheckpointError):
                self.renew()


def acquire_lease_if_writable(store: Store, checkpoint_id: str, seconds: float) -> Optional[KeptLease]:
    """Return a lease that is renewed until it is released; None where the root cannot be written, so that nobody
    can be kept from deleting the checkpoint."""
    try:
        return KeptLease(store, checkpoint_id, seconds)
    except (OSError, CheckpointError):
        return None


class Moment(NamedTuple):
    """Now: Unix seconds, and seconds that only go forward."""

    wall: float
    steady: float


def _now() -> Moment:
    return Moment(time.time(), time.monotonic())


class LeaseWatch:
    """The leases that this process has seen, and when they end by the clock that only goes forward."""

    def __init__(self) -> None:
        self._ends: Dict[Tuple[str, str], float] = {}

    def record_first_seen_and_is_expired(self, root: str, name: str, until: float, now: Moment) -> bool:
        """Return whether the lease of that name has expired, and note when it was first seen. `until`: the end that
        its name gives."""
        if until + LONG_OVER < now.wall:
            return True
        remaining = min(max(0.0, until - now.wall), LONG_OVER)
        return now.steady >= self._ends.setdefault((root, name), now.steady + remaining + GRACE)

    def forget_all_except(self, root: str, present_names: Iterable[str]) -> None:
        """Forget all leases of a root but those that still exist."""
        names = set(present_names)
        for key in [key for key in list(self._ends) if key[0] == root and key[1] not in names]:
            self._ends.pop(key, None)


_WATCH = LeaseWatch()


def leased_checkpoints(store: Store, *, now: Optional[Moment] = None, watch: LeaseWatch = _WATCH) -> Set[str]:
    """Return the checkpoints with a lease that has not expired. Raise OSError."""
    leases, moment = _list_leases(store), now or _now()
    watch.forget_all_except(store.url, (name for _, _, name in leases))
    return {
        checkpoint_id
        for checkpoint_id, until, name in leases
        if not watch.record_first_seen_and_is_expired(store.url, name, until, moment)
    }


def checkpoints_with_any_lease(store: Store) -> Set[str]:
    """Return the checkpoints that have a lease file, also an expired one that was not removed yet. Raise
    OSError."""
    return {checkpoint_id for checkpoint_id, _, _ in _list_leases(store)}


def remove_expired(store: Store, *, now: Optional[Moment] = None, watch: LeaseWatch = _WATCH) -> None:
    """Delete the files of expired leases. Raise Unsupported, OSError."""
    moment = now or _now()
    for _, until, name in _list_leases(store):
        if watch.record_first_seen_and_is_expired(store.url, name, until, moment):
            store.delete(f"{layout.LEASES}/{name}")


def _list_leases(store: Store) -> Set[Tuple[str, int, str]]:
    """Return (checkpoint id, end, file name) of each lease; other file names are skipped."""
    matches = ((_NAME.fullmatch(name), name) for name in store.list(layout.LEASES))
    return {(match.group(1), int(match.group(2)), name) for match, name in matches if match}
