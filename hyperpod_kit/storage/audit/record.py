"""One thing that was done to one file, as far as a log says it; and what a log cannot say."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Iterable, Iterator, Protocol, Union

from hyperpod_kit.untrusted.text import clean_one_line


@dataclass(frozen=True)
class AuditRecord:
    """An operation on a file.

    `time`: Unix seconds; source: which log; id: unique in that source, so that a second import adds nothing.

    op: read, write, create, delete, rename, list or the log's own word; path: what the log calls it; user: of Linux,
    or who AWS says it was; uid: -1 where nobody knows; job: Slurm's number; by: what says so (cgroup, environment,
    log, accounting); result: "" for success; note: what is not sure.
    """

    time: float
    source: str
    id: str
    op: str
    path: str
    new_path: str = ""
    host: str = ""
    uid: int = -1
    user: str = ""
    pid: int = 0
    command: str = ""
    job: str = ""
    by: str = ""
    result: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return its JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class AuditGap:
    """Between these times something may have happened that no record has. `until`: the same as `since` for a moment."""

    since: float
    until: float
    source: str
    id: str
    why: str
    host: str = ""


Entry = Union[AuditRecord, AuditGap]

OVERLONG = "\0 a line that is longer than a line of such a log can be\n"
"""Stands for one that was not kept: no log has such a line, so that it is a gap."""


class Importer(Protocol):
    """Parses lines of a log to entries. Lines that are none of that log are gaps: they may have said something."""

    def __call__(self, lines: Iterable[str], log_name: str) -> Iterator[Entry]: ...


def to_storable_record_or_gap(entry: Entry) -> Entry:
    """Convert an entry to what SQLite keeps and gives back: half a surrogate pair is written as an escape; what has no
    time, or a number that no kernel gives, is a gap."""
    if isinstance(entry, AuditGap):
        times = (entry.since, entry.until)
        if not all(map(math.isfinite, times)):
            times = (0.0, 0.0)
        return replace(entry, since=times[0], until=times[1], **_text_fields_with_surrogates_escaped(entry))
    if not math.isfinite(entry.time) or not (-1 <= entry.uid < 1 << 32) or not (0 <= entry.pid < 1 << 31):
        reason = "a record has no valid time, user or process"
        return to_storable_record_or_gap(AuditGap(0.0, 0.0, entry.source, entry.id, reason, entry.host))
    return replace(entry, **_text_fields_with_surrogates_escaped(entry))


def _text_fields_with_surrogates_escaped(entry: Entry) -> dict[str, Any]:
    return {
        name: value.encode("utf-8", "backslashreplace").decode()
        for name, value in vars(entry).items()
        if isinstance(value, str)
    }


def unreadable_line_gap(source: str, log_name: str, number: int, text: str, time: float) -> AuditGap:
    """Make the gap for a line that cannot be read. `time`: of the last line before it."""
    reason = f"{log_name}, line {number}, cannot be read: {clean_one_line(text, 200)}"
    return AuditGap(time, time, source, f"{log_name}:{number}:{text[:200]}", reason, "")
