"""A database of SQLite, which names its files by path, and so lies in a directory that is closed to others."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from hyperpod_kit.untrusted.closed import resolve_directory_closed_to_others


def open_private_database(path: Path, *, timeout: float) -> sqlite3.Connection:
    """Open the database at `path`, made when it is not there; each statement is its own transaction.

    Raises UntrustedPlace when others may write to its directory or have laid a link on the way to it, sqlite3.Error,
    OSError.
    """
    directory, name = os.path.split(path)
    closed = resolve_directory_closed_to_others(directory or ".")
    return sqlite3.connect(os.path.join(closed, name), isolation_level=None, timeout=timeout)
