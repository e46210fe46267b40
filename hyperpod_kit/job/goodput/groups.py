"""Adds up the time of many jobs by user, partition, cluster, week or job. Pure.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import datetime
import re
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

from hyperpod_kit.errors import UsageError
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.pieces import TimePiece, within
from hyperpod_kit.job.goodput.time_table import TimeTable, table_of

WEEK = "week"
BY = ("user", "partition", "cluster", WEEK, "job")
"""What jobs can be added up by."""

NOT_KNOWN = "(not known)"

GPU, MIXED = "gpu", "mixed"


class GroupTime(NamedTuple):
    """The time of a group of jobs.

    `unit`: "gpu" where the number of GPUs is known for all of the jobs; "node" where it is known for none, so that each
    node counts as one GPU; "mixed" where it is known for some.
    """

    table: TimeTable
    unit: str = GPU

    @property
    def counts_gpus(self) -> bool:
        """Whether the number of GPUs is known for all jobs of the group."""
        return self.unit == GPU

    def to_dict(self) -> Dict[str, Any]:
        """Return the group as --json shows it."""
        return {"unit": self.unit, **self.table.to_dict()}


_UNITS = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
_SPAN = re.compile(r"([0-9]{1,6})([hdw])")


def since(text: str, now: float) -> float:
    """Return the moment that `24h`, `7d`, `4w` or a day as 2026-11-02 means, in Unix seconds. Raises UsageError."""
    match = _SPAN.fullmatch(text)
    if match:
        return now - int(match.group(1)) * _UNITS[match.group(2)]
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d").timestamp()
    except ValueError:
        raise UsageError(f"--since is {text!r}, expected 24h, 7d, 4w or 2026-11-02") from None


def tables(jobs: Sequence[JobTime], by: str, begin: float, end: float) -> Dict[str, GroupTime]:
    """Return the time of each group between two moments; a group without any is left out."""
    pieces: Dict[str, List[TimePiece]] = {}
    units: Dict[str, Set[str]] = {}
    for job in jobs:
        for piece in within(job.pieces, begin, end):
            for name, part in _parts_by_group(job, piece, by):
                pieces.setdefault(name, []).append(part)
                units.setdefault(name, set()).add(job.unit)
    return {name: GroupTime(table_of(parts), _common(units[name])) for name, parts in sorted(pieces.items())}


def _parts_by_group(job: JobTime, piece: TimePiece, by: str) -> List[Tuple[str, TimePiece]]:
    """Return the groups that a piece of the job belongs to, each with its part of the piece."""
    if by == WEEK:
        return by_week(piece)
    return [(group_name_of_job(job, by), piece)]


def total(groups: Sequence[GroupTime]) -> GroupTime:
    """Return the time of all groups together."""
    seconds = {cause: sum(group.table.seconds.get(cause, 0.0) for group in groups) for cause in TimeCause}
    gpu_seconds = {cause: sum(group.table.gpu_seconds.get(cause, 0.0) for group in groups) for cause in TimeCause}
    parts: Dict[str, float] = {}
    for group in groups:
        for part, spent in group.table.parts.items():
            parts[part] = parts.get(part, 0.0) + spent
    return GroupTime(TimeTable(seconds, gpu_seconds, parts), _common({group.unit for group in groups}))


def together(groups_of_roots: Sequence[Dict[str, GroupTime]]) -> Dict[str, GroupTime]:
    """Return the groups of several roots, those of the same name added up."""
    by_name: Dict[str, List[GroupTime]] = {}
    for groups in groups_of_roots:
        for name, group in groups.items():
            by_name.setdefault(name, []).append(group)
    return {name: total(groups) for name, groups in sorted(by_name.items())}


def _common(units: Iterable[str]) -> str:
    distinct = sorted(set(units))
    if len(distinct) == 1:
        return distinct[0]
    return MIXED


def group_name_of_job(job: JobTime, by: str) -> str:
    """Return the name of the group that a job is in; `by` is any of BY but WEEK."""
    if by == "job":
        return job.job
    rows = [run.row for run in job.runs if run.row is not None]
    if not rows:
        return NOT_KNOWN
    return str(getattr(rows[-1], by) or NOT_KNOWN)


def by_week(piece: TimePiece) -> List[Tuple[str, TimePiece]]:
    """Return the piece cut where weeks begin, on Monday at 0:00 local time, each part with its ISO week."""
    parts: List[Tuple[str, TimePiece]] = []
    start = piece.start
    while start < piece.end:
        day = datetime.datetime.fromtimestamp(start)
        monday = datetime.datetime(day.year, day.month, day.day) - datetime.timedelta(days=day.weekday())
        end = min(piece.end, (monday + datetime.timedelta(days=7)).timestamp())
        year, week, _ = monday.isocalendar()
        parts.append((f"{year}-W{week:02}", piece._replace(start=start, end=end)))
        start = end
    return parts
