"""A database of SQLite, which names its files by path, and so lies in a directory that is closed to others."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from hyperpod_kit.untrusted.closed import require_closed


def connect(path: Path, *, timeout: float) -> sqlite3.Connection:
    """The database at `path`, made when it is not there, each statement its own transaction.

    Raises UntrustedPlace when others may write to its directory, sqlite3.Error, OSError.
    """
    require_closed(os.path.dirname(os.path.abspath(path)))
    return sqlite3.connect(path, isolation_level=None, timeout=timeout)
