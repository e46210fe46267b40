"""How large a place was, by day: one row a day, of its last count, in a small file of the user's."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.storage.usage.report import UsageReport
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from hyperpod_kit.untrusted.parse import parse_json_object

FORMAT = "hpk-usage-history/1"
MAX_FILE_BYTES = 16 << 20
MAX_TIMESTAMP = 1e11
"""A time in Unix seconds that no clock shows."""
MAX_DAYS = 1100
"""Rows that stay: three years."""
MAX_USERS = 100
"""Of a day, the largest."""


class HistoryError(HyperpodKitError):
    """A file of sizes by day cannot be read."""


@dataclass(frozen=True)
class UsageDay:
    """`day`: in UTC, as 2026-11-27; `at`: Unix seconds; `room` and `free`: bytes of the file system, None for a bucket;
    `users`: name -> bytes on disk."""

    day: str
    at: float
    entries: int
    size: int
    allocated: int
    room: int | None
    free: int | None
    users: dict[str, int]

    @property
    def used(self) -> int:
        """Return the bytes that grow: of the file system where it has an end, else of what was counted."""
        if self.room is None or self.free is None:
            return self.allocated
        return self.room - self.free


@dataclass(frozen=True)
class UsageHistory:
    """`days`: the oldest first, each day once."""

    root: str
    days: tuple[UsageDay, ...] = ()

    def with_day(self, day: UsageDay) -> UsageHistory:
        """Return the history with this day in its place."""
        other_days = [row for row in self.days if row.day != day.day]
        return replace(self, days=tuple(sorted([*other_days, day], key=lambda row: row.day)[-MAX_DAYS:]))


def day_from_report(report: UsageReport, now: float | None = None) -> UsageDay:
    """Make the row of a count that has just ended."""
    now = time.time() if now is None else now
    largest = sorted(report.users.items(), key=lambda pair: -pair[1].allocated)[:MAX_USERS]
    users = {name: row.allocated for name, row in largest}
    room, free = report.room or (None, None)
    total = report.total
    day = time.strftime("%Y-%m-%d", time.gmtime(now))
    return UsageDay(day, now, total.entries, total.size, total.allocated, room, free, users)


def default_history_path(root: str) -> Path:
    """Return the default file of a place, in the user's home."""
    digest = hashlib.sha256(root.encode(errors="surrogateescape")).hexdigest()[:16]
    return Path.home() / ".local/state/hyperpod-kit/usage" / f"{digest}.history.json"


def read_history_or_empty(path: Path) -> UsageHistory:
    """Read the history, empty where there is none. Raises HistoryError, Untrusted, OSError."""
    try:
        body = parse_json_object(by_descriptor.read_own_or_root_file(path, MAX_FILE_BYTES), MAX_FILE_BYTES)
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r}")
        root, days = str(body["root"]), [_decode_day(row) for row in body["days"]]
    except FileNotFoundError:
        return UsageHistory("")
    except (ValueError, KeyError, TypeError, OverflowError) as err:
        raise HistoryError(
            f"{path}: {err}: not a history of sizes", hint="move it away, or --history ANOTHER-FILE"
        ) from err
    return UsageHistory(root, tuple(sorted(days, key=lambda row: row.day)[-MAX_DAYS:]))


def write(path: Path, history: UsageHistory) -> None:
    """Write what `read` takes back, whole or not at all. Raises Untrusted, OSError."""
    by_descriptor.make_directories(path.parent)
    body = {"format": FORMAT, "root": history.root, "days": [asdict(row) for row in history.days]}
    atomic_file.write_atomically(path, json.dumps(body).encode() + b"\n", 0o600, durable=True)


def record_day(path: Path, report: UsageReport, now: float | None = None) -> UsageHistory:
    """Record this count as the row of its day, in the file too; returns the history.

    Raises HistoryError, Untrusted, OSError.
    """
    history = read_history_or_empty(path)
    if history.days and history.root != report.root:
        raise HistoryError(f"{path} has sizes of {history.root}, not of {report.root}", hint="--history ANOTHER-FILE")
    history = replace(history, root=report.root).with_day(day_from_report(report, now))
    write(path, history)
    return history


def _decode_day(row: Any) -> UsageDay:
    day = dataclass_from_json(UsageDay, row, ignore_unknown=True)
    if min(day.entries, day.size, day.allocated, day.room or 0, day.free or 0, *day.users.values()) < 0:
        raise ValueError(f"day {day.day!r} has a count below 0")
    if not 0 <= day.at < MAX_TIMESTAMP or time.strftime("%Y-%m-%d", time.gmtime(day.at)) != day.day:
        raise ValueError(f"day {day.day!r} at {day.at!r}")
    return day
