"""`hyperpod-kit job goodput`: what the time of many jobs went into.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import os
import pwd
import time
from typing import Dict, List, Optional, Sequence

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import CheckpointError, JobError, Unreachable
from hyperpod_kit.job import job_index, ledger, state_place
from hyperpod_kit.job.goodput import groups, job_time, root_time, standing
from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.time_table import TimeTable, percents
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import clean

_HEAD = ("goodput", "GPU-hours")


def main(args: argparse.Namespace) -> int:
    """Run the command that was parsed; returns its exit code. Raises HyperpodKitError."""
    now = time.time()
    begin = groups.since(args.since, now)
    roots = [state_place.absolute(root) for root in args.root] or noted_roots()
    if not roots:
        raise Unreachable(
            f"no job is noted in {job_index.notes()}", hint="hyperpod-kit job goodput --root DIR, for each root"
        )
    jobs: List[JobTime] = []
    problems: List[str] = []
    for root in roots:
        try:
            jobs += jobs_of(root, now)
        except (OSError, JobError, CheckpointError) as err:
            problems.append(f"{root} is not counted: {err}")
    if problems and not jobs:
        raise Unreachable("; ".join(problems))
    found = groups.tables(jobs, args.by, begin, now)
    if args.json:
        rows = {name: table.to_dict() for name, table in found.items()}
        terminal.data({"since": begin, "until": now, "by": args.by, "groups": rows, "problems": problems}, indent=2)
    else:
        terminal.out("\n".join(lines(found, args.by, args.price)) or "no job had any time since then")
        for problem in problems:
            terminal.say(problem)
    return 0


def jobs_of(root: str, now: float) -> List[JobTime]:
    """Raises OSError; of a root in S3 JobError, CheckpointError."""
    if is_path(root):
        os.stat(root)
    runs = root_time.runs(root)
    names = dict.fromkeys(run.key[0] for run in runs)
    return [job_time.account(runs, name, now, standing.of(LocalRunner(), name)) for name in names]


def noted_roots() -> List[str]:
    """Of this user's jobs; for root, of every user's."""
    files = [job_index.notes()]
    if os.geteuid() == 0:
        files += [job_index.notes({"HOME": user.pw_dir}) for user in pwd.getpwall()]
    roots: Dict[str, None] = {}
    for file in dict.fromkeys(files):
        try:
            roots.update((str(row["root"]), None) for row in ledger.read(file) if row.get("root"))
        except OSError:
            continue
    return list(roots)


def lines(found: Dict[str, TimeTable], by: str, price: Optional[float]) -> List[str]:
    """One line a group, and one for all where there are several."""
    if not found:
        return []
    shown = {**found, "all": _sum(list(found.values()))} if len(found) > 1 else found
    causes = [cause for cause in TimeCause if any(table.seconds.get(cause, 0.0) > 0 for table in found.values())]
    held = [cause for cause in causes if cause is not TimeCause.QUEUE]
    head = [by, *_HEAD, *(["dollars"] if price is not None else []), *(LABELS[cause] for cause in held), "queue, hours"]
    rows = [head, *(_row(name, table, held, price) for name, table in shown.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows]


def _row(name: str, table: TimeTable, held: Sequence[TimeCause], price: Optional[float]) -> List[str]:
    goodput = f"{table.goodput:.1%}" if table.goodput is not None else "?"
    hours = table.held / 3600
    shares = percents([table.gpu_seconds.get(cause, 0.0) for cause in held])
    money = [f"{hours * price:,.2f}"] if price is not None else []
    queue = f"{table.seconds.get(TimeCause.QUEUE, 0.0) / 3600:,.1f}"
    return [clean(name, 40), goodput, f"{hours:,.1f}", *money, *(f"{share:.1f} %" for share in shares), queue]


def _sum(found: Sequence[TimeTable]) -> TimeTable:
    seconds = {cause: sum(table.seconds.get(cause, 0.0) for table in found) for cause in TimeCause}
    held = {cause: sum(table.gpu_seconds.get(cause, 0.0) for table in found) for cause in TimeCause}
    return TimeTable(seconds, held)
