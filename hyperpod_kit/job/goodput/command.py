"""`hyperpod-kit job goodput`: what the time of many jobs went into.

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
    """Run the command that was parsed; returns its exit code, 1 where a root is not counted.

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
    terminal.print_stdout("\n".join(lines(shown, args.by, args.price)) or "no job had any time since then")
    if not all(group.counts_gpus for group in shown.values()):
        terminal.print_stderr(_NO_GPUS)
    for problem in problems:
        terminal.print_stderr(problem)
    return _code(problems)


def _code(problems: Sequence[str]) -> int:
    """A sum that leaves something out is no whole one."""
    return ExitCode.PROBLEM if problems else ExitCode.OK


def _roots(named: Sequence[str]) -> List[str]:
    """Those that are named, or those of this user's jobs that are noted. Raises Absent, Unreachable."""
    for root in named:
        state_place.require_root(root)
    roots = [state_place.absolute(root) for root in named]
    if roots:
        return _distinct(roots)
    try:
        noted = dict.fromkeys(str(row["root"]) for row in ledger.read(job_index.index_file_path()) if row.get("root"))
    except OSError as err:
        raise Unreachable(
            f"the jobs that are noted in {job_index.index_file_path()} cannot be read: {err.strerror}"
        ) from err
    if not noted:
        raise Unreachable(
            f"no job is noted in {job_index.index_file_path()}",
            hint="hyperpod-kit job goodput --root DIR, for each root",
        )
    return _distinct(list(noted))


def _distinct(roots: Sequence[str]) -> List[str]:
    """Without those that are another one by another name: nothing is counted twice."""
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
    """The jobs on all of them. `problems`: gets a sentence for each root that cannot be read. Raises Unreachable where
    nothing can."""
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
    """Raises OSError; of a root in S3 JobError, CheckpointError."""
    if is_path(root):
        os.stat(root)
    runs = root_time.runs(root)
    names = dict.fromkeys(run.key[0] for run in runs)
    return [
        job_time.account(runs, name, now, standing.query_job_standing_or_none(LocalRunner(), name)) for name in names
    ]


def lines(shown: Dict[str, GroupTime], by: str, price: Optional[float]) -> List[str]:
    """One line a group, and one for all where there are several."""
    if not shown:
        return []
    every = {**shown, "all": groups.total(list(shown.values()))} if len(shown) > 1 else shown
    causes = [cause for cause in TimeCause if any(group.table.seconds.get(cause, 0.0) > 0 for group in shown.values())]
    columns = [cause for cause in causes if cause is not TimeCause.QUEUE]
    dollars = ["dollars"] if price is not None else []
    head = [by, *_HEAD, *dollars, *(LABELS[cause] for cause in columns), "queue, hours"]
    rows = [head, *(_row(name, group, columns, price) for name, group in every.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows]


def _row(name: str, group: GroupTime, columns: Sequence[TimeCause], price: Optional[float]) -> List[str]:
    table = group.table
    shares = percents([table.gpu_seconds.get(cause, 0.0) for cause in columns])
    queue = f"{table.seconds.get(TimeCause.QUEUE, 0.0) / 3600:,.1f}"
    return [
        clean_one_line(name, 40),
        f"{table.goodput:.1%}" if table.goodput is not None else "?",
        *_gpu_hours_and_dollars_columns(group, price),
        *(f"{share:.1f} %" for share in shares),
        queue,
    ]


def _gpu_hours_and_dollars_columns(group: GroupTime, price: Optional[float]) -> List[str]:
    """GPU-hours, and dollars where a GPU-hour has a price."""
    if not group.counts_gpus:
        return ["?"] if price is None else ["?", "?"]
    hours = group.table.total_gpu_seconds / 3600
    return [f"{hours:,.1f}"] if price is None else [f"{hours:,.1f}", f"{hours * price:,.2f}"]
