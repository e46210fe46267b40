"""`hyperpod-kit job goodput`: shows what the time of many jobs was spent on.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from typing import Dict, List, Optional, Sequence

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import CheckpointError, JobError, Unreachable
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.goodput import groups, job_time, root_time, standing, users_time
from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from hyperpod_kit.job.goodput.groups import GroupTime
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.time_table import percents
from hyperpod_kit.job.records import job_index, ledger, state_place
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.untrusted import owner, terminal
from hyperpod_kit.untrusted.text import clean_one_line

_HEAD = ("goodput", "GPU-hours")
_NO_GPUS = "how many GPUs some of these jobs held is not known (`?`): in the shares each of their nodes counts as one"


def main(args: argparse.Namespace) -> int:
    """Run the parsed command and return its exit code, 1 where a root is not counted.

    Raises HyperpodKitError.
    """
    now = time.time()
    begin = groups.since(args.since, now)
    problems: List[str] = []

    def time_by_group_on_root(root: str) -> Dict[str, GroupTime]:
        return groups.tables(jobs_of(root, now), args.by, begin, now)

    if owner.is_machine_root():
        shown = users_time.tables(args.root, time_by_group_on_root, problems)
    else:
        shown = groups.tables(_jobs_on(_roots(args.root), now, problems), args.by, begin, now)
    if args.json:
        rows = {name: group.to_dict() for name, group in shown.items()}
        terminal.print_json(
            {"since": begin, "until": now, "by": args.by, "groups": rows, "problems": problems}, indent=2
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
        raise Unreachable(
            f"the jobs that are noted in {job_index.index_file_path()} cannot be read: {err.strerror}"
        ) from err
    roots = dict.fromkeys(str(row["root"]) for row in rows if row.get("root"))
    if not roots:
        raise Unreachable(
            f"no job is noted in {job_index.index_file_path()}",
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
        groups_and_total = {**shown, "all": groups.total(list(shown.values()))}
    causes = [cause for cause in TimeCause if _has_time(shown, cause)]
    columns = [cause for cause in causes if cause is not TimeCause.QUEUE]
    dollars: List[str] = []
    if price is not None:
        dollars = ["dollars"]
    head = [by, *_HEAD, *dollars, *(LABELS[cause] for cause in columns), "queue, hours"]
    rows = [head, *(_row(name, group, columns, price) for name, group in groups_and_total.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows]


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
