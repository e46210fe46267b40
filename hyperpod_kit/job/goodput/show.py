"""Shows a job's time as text: a bar, and a line for each cause with what would reduce it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from hyperpod_kit.checkpoint.agent.reports.save_failures import ago
from hyperpod_kit.job.base.durations import describe_duration
from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from hyperpod_kit.job.goodput.job_time import JobState, JobTime
from hyperpod_kit.job.goodput.launch_time import usual_step
from hyperpod_kit.job.goodput.time_rows import TimeRow
from hyperpod_kit.job.goodput.time_table import TimeTable, percents

BAR = 40
"""Characters of the bar of the whole time."""

_OLD = 1.5
"""Seconds from which on the age of a figure is shown."""

_UNITS = {"gpu": "GPU-hours", "node": "node-hours"}

CURES: Dict[TimeCause, str] = {
    TimeCause.TWICE: "save more often: `every=` of Manager, and `storage_every=` where hosts are lost",
    TimeCause.RESTORE: "restore from memory: keep the job in its allocation, with spare nodes (`--nodes`)",
    TimeCause.SAVES: "`Manager(overlap=True)`, or save less often",
    TimeCause.DATA: "more loader workers: `hyperpod-kit data bench`",
    TimeCause.HANG: "a tighter `--stall`; find the rank in the line of the attempt",
    TimeCause.BACK_OFF: "the first retry comes at once; find the cause of the repeated failures",
    TimeCause.NODES: "ask for a spare node: `job run --nodes N`",
    TimeCause.CLOSE: "the last save waits for storage: `hyperpod-kit storage plan`",
}
"""What reduces the time of a cause, for the causes that a user can reduce."""


def lines(time: JobTime, table: TimeTable, price: Optional[float] = None) -> List[str]:
    """Return the lines about a job, none for a job that has had no time. `price`: US dollars a GPU-hour."""
    if not table.total_seconds:
        return []
    causes = [cause for cause in TimeCause if table.seconds.get(cause, 0.0) > 0.0]
    shares = percents([table.seconds[cause] for cause in causes])
    output_lines = [goodput_sentence(time, table), bar(shares)]
    for cause, share in zip(causes, shares):
        output_lines.append(_cause_line(cause, share, time.unit, table, price))
    return [*output_lines, *time.caveats]


def _cause_line(cause: TimeCause, share: float, unit: str, table: TimeTable, price: Optional[float]) -> str:
    """Return the line of one cause. `share`: of the job's time, in percent."""
    hours = table.gpu_seconds.get(cause, 0.0) / 3600
    places = 3
    if hours >= 10:
        places = 1
    spent = f"{LABELS[cause]:18}{describe_duration(table.seconds[cause]):>14}{share:7.1f} %"
    line = f"{spent}{hours:12,.{places}f} {_UNITS[unit]}"
    if price is not None and unit == "gpu":
        line += f"{hours * price:12,.2f} $"
    cure = _remedy_or_start_up_parts(cause, table)
    if cure:
        line += f"  {cure}"
    return line


def goodput_sentence(job_time: JobTime, table: TimeTable) -> str:
    """Return the sentence with the goodput, and the time that it is a part of."""
    until = "now"
    if job_time.state is JobState.OVER:
        until = "its end"
    denominator = f"{_UNITS[job_time.unit][:-1].replace('-hour', '')} time that it held"
    if table.goodput is None:
        return f"goodput is unknown, {describe_duration(table.total_seconds)} from its submission to {until}"
    least = ""
    if table.unknown_gpu_share >= 0.0005:
        least = f"at least ({table.unknown_gpu_share:.1%} of it is unknown) "
    span = f"{describe_duration(table.total_seconds)} from its submission to {until}"
    return f"goodput {least}{table.goodput:.1%} of the {denominator}, {span}"


def bar(shares: Sequence[float]) -> str:
    """Return the bar of the shares: full for the first cause (steps that lasted, if any), lighter for the others."""
    parts = []
    drawn, passed = 0, 0.0
    for number, share in enumerate(shares):
        passed += share
        upto = round(BAR * passed / 100)
        parts.append(_shade(number) * (upto - drawn))
        drawn = upto
    return "".join(parts)


def _shade(number: int) -> str:
    """Return the character of the share with this number; from the third one on, two characters alternate."""
    shades = "█▓▒░"
    if number < 2:
        return shades[number]
    return shades[2 + number % 2]


def now_at(row: TimeRow, now: float) -> str:
    """Return the progress of a running attempt, its speed, and how old the row is. `now`: Unix seconds."""
    if row.step is None:
        return f"rank 0 is in the phase {row.phase.value} and has completed no step yet{_age(row, now)}"
    usual = usual_step(row)
    speed = ""
    if usual:
        speed = f", {usual:.3g} s a step"
    return f"now at step {row.step}{speed}{_age(row, now)}"


def _age(row: TimeRow, now: float) -> str:
    """Return how old a row of rank 0 is, "" for one of this moment."""
    if now - row.t < _OLD:
        return ""
    return f", as of {ago(now - row.t)}"


def newest_memory_capture_sentence(row: TimeRow, now: float) -> str:
    """Return the step to which a crash of a running attempt would go back on the same nodes. `now`: Unix seconds."""
    capture = row.captured
    if capture is None:
        return f"newest in memory: unknown: rank 0 saw no capture of this job on {row.node}"
    age = ", of unknown age"
    if capture.at is not None:
        age = f", {ago(now - capture.at)}"
    stored = ""
    if capture.on_storage:
        stored = ", on storage too"
    return f"newest in memory: step {capture.step}{age}{stored}{_age(row, now)}"


def _remedy_or_start_up_parts(cause: TimeCause, table: TimeTable) -> str:
    if cause is TimeCause.START_UP:
        longest = sorted(table.parts.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {describe_duration(seconds)}" for name, seconds in longest if seconds >= 0.5)
    return CURES.get(cause, "")
