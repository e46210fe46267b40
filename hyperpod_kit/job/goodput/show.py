"""A job's time for people: a bar, and a line a cause with what would reduce it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from hyperpod_kit.checkpoint.agent.save_failures import ago
from hyperpod_kit.job.base.durations import describe_duration
from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from hyperpod_kit.job.goodput.job_time import JobState, JobTime
from hyperpod_kit.job.goodput.launch_time import usual_step
from hyperpod_kit.job.goodput.time_rows import TimeRow
from hyperpod_kit.job.goodput.time_table import TimeTable, percents

BAR = 40
"""Characters of the whole time."""

_OLD = 1.5
"""Seconds from which on the age of a figure is shown."""

_UNITS = {"gpu": "GPU-hours", "node": "node-hours"}

CURES: Dict[TimeCause, str] = {
    TimeCause.TWICE: "save more often: `every=` of Manager, and `storage_every=` where hosts are lost",
    TimeCause.RESTORE: "restore from memory: keep the job in its allocation, with spare nodes (`--nodes`)",
    TimeCause.SAVES: "`Manager(overlap=True)`, or save less often",
    TimeCause.DATA: "more workers of the loader: `hyperpod-kit data bench`",
    TimeCause.HANG: "a tighter `--stall`; find the rank in the line of the attempt",
    TimeCause.BACK_OFF: "the first retry comes at once; look for what fails again and again",
    TimeCause.NODES: "ask for a spare node: `job run --nodes N`",
    TimeCause.CLOSE: "the last save waits for storage: `hyperpod-kit storage plan`",
}
"""Of a loss that a user can do something about."""


def lines(time: JobTime, table: TimeTable, price: Optional[float] = None) -> List[str]:
    """`price`: US dollars a GPU-hour."""
    if not table.total_seconds:
        return []
    causes = [cause for cause in TimeCause if table.seconds.get(cause, 0.0) > 0.0]
    shares = percents([table.seconds[cause] for cause in causes])
    output_lines = [goodput_sentence(time, table), bar(shares)]
    unit = _UNITS[time.unit]
    for cause, share in zip(causes, shares):
        hours = table.gpu_seconds.get(cause, 0.0) / 3600
        money = f"{hours * price:12,.2f} $" if price is not None and time.unit == "gpu" else ""
        places = 1 if hours >= 10 else 3
        spent = f"{LABELS[cause]:18}{describe_duration(table.seconds[cause]):>14}{share:7.1f} %"
        row = f"{spent}{hours:12,.{places}f} {unit}{money}"
        cure = _remedy_or_start_up_parts(cause, table)
        output_lines.append(f"{row}  {cure}" if cure else row)
    return [*output_lines, *time.caveats]


def goodput_sentence(job_time: JobTime, table: TimeTable) -> str:
    """Goodput, and what it is a part of."""
    until = "its end" if job_time.state is JobState.OVER else "now"
    denominator = f"{_UNITS[job_time.unit][:-1].replace('-hour', '')} time that it held"
    if table.goodput is None:
        return f"goodput is not known, {describe_duration(table.total_seconds)} from its submission to {until}"
    least = f"at least ({table.unknown_gpu_share:.1%} of it is not known) " if table.unknown_gpu_share >= 0.0005 else ""
    span = f"{describe_duration(table.total_seconds)} from its submission to {until}"
    return f"goodput {least}{table.goodput:.1%} of the {denominator}, {span}"


def bar(shares: Sequence[float]) -> str:
    """The first cause, which is what lasted where anything did, is full; the others follow, lighter."""
    shades = "█▓▒░"
    parts = []
    drawn, passed = 0, 0.0
    for number, share in enumerate(shares):
        passed += share
        upto = round(BAR * passed / 100)
        parts.append(shades[min(number, 1) if number < 2 else 2 + number % 2] * (upto - drawn))
        drawn = upto
    return "".join(parts)


def now_at(row: TimeRow, now: float) -> str:
    """How far a running attempt is, how fast, and how old that is. `now`: Unix seconds."""
    if row.step is None:
        return f"rank 0 is in the phase {row.phase.value} and has completed no step yet{_age(row, now)}"
    usual = usual_step(row)
    return f"now at step {row.step}" + (f", {usual:.3g} s a step" if usual else "") + _age(row, now)


def _age(row: TimeRow, now: float) -> str:
    """Of what rank 0 said; "" for what it says now."""
    return f", as of {ago(now - row.t)}" if now - row.t >= _OLD else ""


def newest_memory_capture_sentence(row: TimeRow, now: float) -> str:
    """What a crash of a running attempt would go back to, where its nodes are kept. `now`: Unix seconds."""
    capture = row.captured
    if capture is None:
        return f"newest in memory: unknown: rank 0 saw no capture of this job on {row.node}"
    age = f", {ago(now - capture.at)}" if capture.at is not None else ", of unknown age"
    stored = ", on storage too" if capture.on_storage else ""
    return f"newest in memory: step {capture.step}{age}{stored}{_age(row, now)}"


def _remedy_or_start_up_parts(cause: TimeCause, table: TimeTable) -> str:
    if cause is TimeCause.START_UP:
        longest = sorted(table.parts.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {describe_duration(seconds)}" for name, seconds in longest if seconds >= 0.5)
    return CURES.get(cause, "")
