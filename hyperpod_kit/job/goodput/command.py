"""`hyperpod-kit job goodput`: shows what the time of many jobs was spent on.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import pwd
import re
import resource
import time
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.tables import Column, format_rows
from hyperpod_kit.errors import Absent, CheckpointError, HyperpodKitError, JobError, Unreachable, UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.goodput import job_time, root_time, standing
from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.pieces import TimePiece, within
from hyperpod_kit.job.goodput.time_table import TimeTable, percents, table_of
from hyperpod_kit.job.records import job_index, ledger, state_place
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.untrusted import owner, terminal
from hyperpod_kit.untrusted.owner import OwnerLimits
from hyperpod_kit.untrusted.text import clean_one_line

# Adds up the time of many jobs by user, partition, cluster, week or job. Pure.

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
        return datetime.datetime.strptime(f"{text} +0000", "%Y-%m-%d %z").timestamp()
    except ValueError:
        raise UsageError(f"--since is {text!r}, expected 24h, 7d, 4w or 2026-11-02") from None


def group_tables(jobs: Sequence[JobTime], by: str, begin: float, end: float) -> Dict[str, GroupTime]:
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
    """Return the piece cut where weeks begin, on Monday at 0:00 UTC, each part with its ISO week."""
    parts: List[Tuple[str, TimePiece]] = []
    start = piece.start
    while start < piece.end:
        day = datetime.datetime.fromtimestamp(start, datetime.timezone.utc)
        midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.timezone.utc)
        monday = midnight - datetime.timedelta(days=day.weekday())
        end = min(piece.end, (monday + datetime.timedelta(days=7)).timestamp())
        year, week, _ = monday.isocalendar()
        parts.append((f"{year}-W{week:02}", piece._replace(start=start, end=end)))
        start = end
    return parts


# --- The command -----------------------------------------------------------------------------------------------------

_HEAD = ("goodput", "GPU-hours")
_NO_GPUS = "the number of GPUs of some jobs is unknown (`?`): in the shares each of their nodes counts as one GPU"


def main(args: argparse.Namespace) -> int:
    """Run the parsed command and return its exit code, 1 where a root is not counted.

    Raises HyperpodKitError.
    """
    now = time.time()
    begin = since(args.since, now)
    problems: List[str] = []

    def time_by_group_on_root(root: str) -> Dict[str, GroupTime]:
        return group_tables(jobs_of(root, now), args.by, begin, now)

    if owner.is_machine_root():
        shown = tables(args.root, time_by_group_on_root, problems)
    else:
        shown = group_tables(_jobs_on(_roots(args.root), now, problems), args.by, begin, now)
    if args.json:
        rows = {name: group.to_dict() for name, group in shown.items()}
        terminal.print_json(
            document(
                "job goodput", {"since": begin, "until": now, "by": args.by, "groups": rows, "problems": problems}
            ),
            indent=2,
        )
        return _code(problems)
    report = "\n".join(lines(shown, args.by, args.price))
    if not report:
        report = "no job had any time since then"
    terminal.print_stdout(report)
    if not all(group.counts_gpus for group in shown.values()):
        terminal.print_stderr(_NO_GPUS)
    for problem in problems:
        terminal.print_stderr(problem)
    return _code(problems)


def _code(problems: Sequence[str]) -> int:
    """Return PROBLEM where the sums leave a root out, otherwise OK."""
    if problems:
        return ExitCode.PROBLEM
    return ExitCode.OK


def _roots(named: Sequence[str]) -> List[str]:
    """Return the named roots, or those in this user's index of jobs where none is named. Raises Absent, Unreachable."""
    for root in named:
        state_place.require_root(root)
    roots = [state_place.absolute(root) for root in named]
    if not roots:
        roots = _roots_in_index()
    return _distinct(roots)


def _roots_in_index() -> List[str]:
    """Return the roots in this user's index of jobs, one at least. Raises Unreachable."""
    try:
        rows = ledger.read(job_index.index_file_path())
    except OSError as err:
        raise Unreachable(f"the jobs recorded in {job_index.index_file_path()} cannot be read: {err.strerror}") from err
    roots = dict.fromkeys(str(row["root"]) for row in rows if row.get("root"))
    if not roots:
        raise Unreachable(
            f"no job is recorded in {job_index.index_file_path()}",
            hint="hyperpod-kit job goodput --root DIR, for each root",
        )
    return list(roots)


def _distinct(roots: Sequence[str]) -> List[str]:
    """Return the roots without further names of the same directory, so that none is counted twice."""
    root_by_identity: Dict[object, str] = {}
    for root in roots:
        identity: object = root
        if is_path(root):
            with contextlib.suppress(OSError):
                facts = os.stat(root)
                identity = (facts.st_dev, facts.st_ino)
        root_by_identity.setdefault(identity, root)
    return list(root_by_identity.values())


def _jobs_on(roots: Sequence[str], now: float, problems: List[str]) -> List[JobTime]:
    """Return the time of the jobs on all roots, and add a sentence to `problems` for each root that cannot be read.

    Raises Unreachable where there are problems and no job.
    """
    jobs: List[JobTime] = []
    for root in roots:
        try:
            jobs += jobs_of(root, now)
        except (OSError, JobError, CheckpointError) as err:
            problems.append(f"{root} is not counted: {err}")
    if problems and not jobs:
        raise Unreachable("; ".join(problems))
    return jobs


def jobs_of(root: str, now: float) -> List[JobTime]:
    """Return the time of each job on the root. Raises OSError; for a root in S3 JobError, CheckpointError."""
    if is_path(root):
        os.stat(root)
    runs = root_time.runs(root)
    names = dict.fromkeys(run.key[0] for run in runs)
    return [
        job_time.account(runs, name, now, standing.query_job_standing_or_none(LocalRunner(), name)) for name in names
    ]


def lines(shown: Dict[str, GroupTime], by: str, price: Optional[float]) -> List[str]:
    """Return the table: a header, a line for each group, and one for all where there are several groups."""
    if not shown:
        return []
    groups_and_total = shown
    if len(shown) > 1:
        groups_and_total = {**shown, "all": total(list(shown.values()))}
    causes = [cause for cause in TimeCause if _has_time(shown, cause)]
    columns = [cause for cause in causes if cause is not TimeCause.QUEUE]
    dollars: List[str] = []
    if price is not None:
        dollars = ["dollars"]
    heads = [*_HEAD, *dollars, *(LABELS[cause] for cause in columns), "queue, hours"]
    numbers = [Column(head.upper(), is_number=True) for head in heads]
    rows = [_row(name, group, columns, price) for name, group in groups_and_total.items()]
    return format_rows((by.upper(), *numbers), rows).split("\n")


def _has_time(shown: Dict[str, GroupTime], cause: TimeCause) -> bool:
    """Return whether any group has time of this cause."""
    return any(group.table.seconds.get(cause, 0.0) > 0 for group in shown.values())


def _row(name: str, group: GroupTime, columns: Sequence[TimeCause], price: Optional[float]) -> List[str]:
    table = group.table
    shares = percents([table.gpu_seconds.get(cause, 0.0) for cause in columns])
    queue = f"{table.seconds.get(TimeCause.QUEUE, 0.0) / 3600:,.1f}"
    goodput = "?"
    if table.goodput is not None:
        goodput = f"{table.goodput:.1%}"
    return [
        clean_one_line(name, 40),
        goodput,
        *_gpu_hours_and_dollars_columns(group, price),
        *(f"{share:.1f} %" for share in shares),
        queue,
    ]


def _gpu_hours_and_dollars_columns(group: GroupTime, price: Optional[float]) -> List[str]:
    """Return the GPU-hours, and the dollars where a GPU-hour has a price; `?` where the GPUs are not known."""
    if not group.counts_gpus and price is None:
        return ["?"]
    if not group.counts_gpus:
        return ["?", "?"]
    hours = group.table.total_gpu_seconds / 3600
    columns = [f"{hours:,.1f}"]
    if price is not None:
        columns.append(f"{hours * price:,.2f}")
    return columns


# Adds up the time of all users' jobs, for root of the machine.
#
# The files of a user are read as that user, a root of jobs at a time, in a child process with a deadline and a limit
# of memory: one that hangs, or is made to be costly to read, is reported as not counted, and all others are counted.

PATIENCE = OwnerLimits(longest=600.0)
"""Limits of the child process for one root."""
MEMORY = 4 << 30
"""Most bytes of memory of the child process that adds up one root."""
MOST_ROOTS = 1000
"""Most roots of one user that are counted, the newest ones."""

RootAccounting = Callable[[str], Dict[str, GroupTime]]
"""A function that returns the time of the jobs on a root by group. Raises HyperpodKitError, OSError."""


def tables(named: Sequence[str], account_root: RootAccounting, problems: List[str]) -> Dict[str, GroupTime]:
    """Return the groups of all named roots, or of those in the users' indexes of jobs where none is named.

    A sentence is added to `problems` for each root or index that is not counted. Raises Absent for a named root that
    does not exist, Unreachable where nothing can be counted.
    """
    if named:
        uids_and_roots = _named(named)
    else:
        uids_and_roots = _noted(problems)
    groups_of_roots: List[Dict[str, GroupTime]] = []
    counted: Set[str] = set()
    for uid, root in uids_and_roots:
        try:
            identity, rows = owner.run_as_user_in_child(
                partial(_account_root_in_child, root, account_root), uid, root, PATIENCE
            )
        except (HyperpodKitError, OSError) as err:
            if named and isinstance(err, Absent):
                raise
            problems.append(f"{root} is not counted: {err}")
            continue
        # A root may be listed by several names.
        if identity not in counted:
            counted.add(identity)
            groups_of_roots.append({name: _decoded(row) for name, row in rows.items()})
    if not groups_of_roots:
        reasons = list(problems)
        if not named:
            reasons.insert(0, f"no job is recorded in {job_index.index_file_path()}")
        raise Unreachable("; ".join(reasons), hint="hyperpod-kit job goodput --root DIR, for each root")
    return together(groups_of_roots)


def _named(roots: Sequence[str]) -> Iterator[Tuple[int, str]]:
    """Yield each named root with the user to read it as; 0 for a root in S3."""
    for root in roots:
        uid = 0
        if is_path(root):
            uid = owner.uid_to_act_as_if_root(root) or 0
        yield uid, root


def _noted(problems: List[str]) -> Iterator[Tuple[int, str]]:
    """Yield (user, root) for each root in the indexes of jobs of this user and of every user."""
    files = [(os.getuid(), job_index.index_file_path())]
    files += [(user.pw_uid, job_index.index_file_path({"HOME": user.pw_dir})) for user in pwd.getpwall()]
    for uid, file in dict.fromkeys(files):
        try:
            roots = owner.run_as_user_in_child(partial(_roots_in, file), uid, file, PATIENCE)
        except (NotADirectoryError, PermissionError):
            continue  # the user has no home directory, as users of the system
        except (HyperpodKitError, OSError) as err:
            problems.append(f"the jobs recorded in {file} are not counted: {err}")
            continue
        if len(roots) > MOST_ROOTS:
            problems.append(f"{file} notes {len(roots):,} roots; only the newest {MOST_ROOTS:,} are counted")
        yield from ((uid, root) for root in roots[:MOST_ROOTS])


def _roots_in(file: str) -> List[str]:
    """Return the roots in an index of jobs, the newest first."""
    _limit_own_data_memory()
    return list(dict.fromkeys(str(row["root"]) for row in reversed(ledger.read(file)) if row.get("root")))


def _account_root_in_child(root: str, account_root: RootAccounting) -> List[Any]:
    """Return the identity of a root and its rows by group, which `owner` passes on as JSON."""
    _limit_own_data_memory()
    state_place.require_root(root)
    absolute_root = state_place.absolute(root)
    rows = {name: _encoded(group) for name, group in account_root(absolute_root).items()}
    if not is_path(absolute_root):
        return [absolute_root, rows]
    facts = os.stat(absolute_root)
    return [f"{facts.st_dev}:{facts.st_ino}", rows]


def _limit_own_data_memory() -> None:
    """Limit the memory of this child process; it fails with MemoryError where it allocates more."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MEMORY
    if most != resource.RLIM_INFINITY:
        limit = min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _encoded(group: GroupTime) -> Dict[str, Any]:
    table = group.table
    return {
        "unit": group.unit,
        "seconds": {cause.value: seconds for cause, seconds in table.seconds.items()},
        "gpu_seconds": {cause.value: seconds for cause, seconds in table.gpu_seconds.items()},
        "parts": table.parts,
    }


def _decoded(row: Mapping[str, Any]) -> GroupTime:
    seconds = _decoded_seconds(row["seconds"])
    gpu_seconds = _decoded_seconds(row["gpu_seconds"])
    return GroupTime(TimeTable(seconds, gpu_seconds, dict(row["parts"])), str(row["unit"]))


def _decoded_seconds(seconds: Mapping[str, Any]) -> Dict[TimeCause, float]:
    return {TimeCause(cause): float(amount) for cause, amount in seconds.items()}
