"""`job status` for people: a line an attempt."""

from __future__ import annotations

import time
from typing import List, Optional, Sequence

from hyperpod_kit.job.base.durations import describe_duration
from hyperpod_kit.job.status.timeline import NONE, UNFINISHED, JobAttempt, Totals
from hyperpod_kit.job.step.step_note import EVERY
from hyperpod_kit.untrusted.text import clean_one_line

HEAD = ("attempt", "started", "took", "from step", "reached", "lost", "ended as", "code", "then")


def table(attempts: Sequence[JobAttempt], sums: Totals, more: Sequence[str] = (), now: Optional[float] = None) -> str:
    """One line an attempt, then the sum and `more`. `?`: not known; an empty field: nothing to know. `now`: Unix
    seconds, for the attempt that still runs."""
    rows: List[Sequence[str]] = [HEAD, *([clean_one_line(text) for text in _row(attempt, now)] for attempt in attempts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    lines = ["  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[-1]]).rstrip() for row in rows]
    return "\n".join([*lines, sentence(sums), *more]) + "\n"


def sentence(sums: Totals) -> str:
    """The totals in words."""
    parts = [f"{sums.attempts} attempt{'' if sums.attempts == 1 else 's'}"]
    if sums.wall:
        parts.append(f"{describe_duration(sums.wall)} from the first start to the last end")
    parts.append(_steps_done_twice_sentence(sums))
    return ", ".join(parts)


def _steps_done_twice_sentence(totals: Totals) -> str:
    """Steps that were done again; what nobody knows is not 0."""
    if totals.lost is None:
        return "unknown how many steps were done twice: no attempt says how far it came"
    steps_text = f"{totals.lost} step{'' if totals.lost == 1 else 's'} done twice"
    if not totals.untold:
        return steps_text
    return f"at least {steps_text} ({totals.untold} attempt{'' if totals.untold == 1 else 's'} did not say how far)"


def ending(attempt: JobAttempt) -> str:
    """Class of the end, and who began it."""
    if attempt.kind == "unknown":
        return "unknown: its batch script was gone before it could say why" if attempt.code is None else attempt.kind
    if attempt.nodes_lost:
        return f"{attempt.kind}: {', '.join(attempt.nodes_lost)}"
    if attempt.first and attempt.kind in ("crash", "stall"):
        return f"{attempt.kind}: rank {attempt.first.get('rank')} on {attempt.first.get('node')}"
    return attempt.kind


def was_running_a_moment_ago(attempt: JobAttempt, now: Optional[float]) -> bool:
    """Whether `job run` was at work on it a moment ago, as its note says."""
    return (
        attempt.kind == UNFINISHED
        and None not in (now, attempt.noted)
        and (now or 0.0) - (attempt.noted or 0.0) < 3 * EVERY
    )


def _row(attempt: JobAttempt, now: Optional[float]) -> Sequence[str]:
    at_work = was_running_a_moment_ago(attempt, now)
    seconds = max(0.0, (now or 0.0) - attempt.started) if at_work else attempt.seconds
    return (
        attempt.name,
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(attempt.started)),
        describe_duration(seconds) if seconds is not None else "",
        _from(attempt),
        reached_step_text(attempt, now),
        lost_steps_text(attempt),
        "running" if at_work else ending(attempt),
        _text(attempt.code),
        _then(attempt),
    )


def _from(attempt: JobAttempt) -> str:
    """The step, and where the ranks had it, unless all took it from storage: memory may hold what storage never had."""
    where = attempt.tier if attempt.tier not in (None, "", "storage") else ""
    return f"{_text(attempt.step)} in {where}" if where and attempt.step is not None else _text(attempt.step)


def _then(attempt: JobAttempt) -> str:
    """What followed; before it, what HyperPod did under the attempt's srun, and how its ranks were seen to hang."""
    times = "once" if attempt.retries == 1 else f"{attempt.retries} times"
    return "; ".join(
        filter(None, [f"HyperPod retried its step {times}" if attempt.retries else "", attempt.hang, attempt.then])
    )


def reached_step_text(attempt: JobAttempt, now: Optional[float]) -> str:
    """The last step; `?` where an attempt that ran did not say it."""
    ran = attempt.kind not in (NONE, UNFINISHED)
    if attempt.moved is not None and now is not None and attempt.reached is not None:
        return f"{attempt.reached}, {describe_duration(max(0.0, now - attempt.moved))} ago"
    return "?" if ran and attempt.reached is None else _text(attempt.reached)


def lost_steps_text(attempt: JobAttempt) -> str:
    """Steps that a later attempt did again; `?` where nobody knows how many."""
    return "?" if attempt.followed and attempt.lost is None else _text(attempt.lost)


def _text(value: object) -> str:
    return "" if value is None else str(value)
