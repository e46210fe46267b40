"""Where a walk keeps what it knows: a file of the user, gone when the walk has ended."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.storage.usage.ledger import UsageLedger
from hyperpod_kit.untrusted import by_descriptor

DAY = 86400.0
"""Sums that were begun longer ago are of another tree, nearly: the walk begins anew."""


def default_ledger_path(about: dict[str, Any]) -> Path:
    """Return the default file for what is counted, in the user's home."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    return Path.home() / ".local/state/hyperpod-kit/usage" / f"{digest}.sqlite"


@contextmanager
def open_ledger_and_delete_on_success(
    path: Path, about: dict[str, Any], *, fresh: bool = False, now: float | None = None
) -> Iterator[UsageLedger]:
    """Open the ledger of an earlier walk that was killed, or a new one; delete it when the context ends well.

    Raises HyperpodKitError while another process counts the same, OSError.
    """
    now = time.time() if now is None else now
    by_descriptor.make_directories(path.parent)
    try:
        ledger = UsageLedger(path, about, fresh=fresh, earliest=now - DAY, now=now)
    except sqlite3.OperationalError as err:
        raise HyperpodKitError(
            f"{path}: {err}: another `storage usage` is counting the same directory, or the file cannot be written",
            hint="wait for it, or name another file: --state FILE",
        ) from err
    except sqlite3.DatabaseError as err:
        raise HyperpodKitError(
            f"{path}: {err}: not a state file of `storage usage`", hint="--state ANOTHER-FILE"
        ) from err
    try:
        yield ledger
    except BaseException:
        ledger.close()
        raise
    ledger.close()
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        by_descriptor.unlink(path.with_name(name), missing_ok=True)
