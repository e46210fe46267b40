"""`job status` for people: a line an attempt."""

from __future__ import annotations

import time
from typing import List, Optional, Sequence

from hyperpod_kit.job.step_note import EVERY
from hyperpod_kit.job.timeline import NONE, UNFINISHED, JobAttempt, Totals
from hyperpod_kit.untrusted.text import clean_one_line

HEAD = ("attempt", "started", "took", "from step", "reached", "lost", "ended as", "code", "then")


def table(found: Sequence[JobAttempt], sums: Totals, more: Sequence[str] = (), now: Optional[float] = None) -> str:
    """One line an attempt, then the sum and `more`. `?`: not known; an empty field: nothing to know. `now`: Unix
    seconds, for the attempt that still runs."""
    rows: List[Sequence[str]] = [HEAD, *([clean_one_line(text) for text in _row(one, now)] for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    lines = ["  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[-1]]).rstrip() for row in rows]
    return "\n".join([*lines, sentence(sums), *more]) + "\n"


def sentence(sums: Totals) -> str:
    """The totals in words."""
    words = [f"{sums.attempts} attempt{'' if sums.attempts == 1 else 's'}"]
    if sums.wall:
        words.append(f"{duration(sums.wall)} from the first start to the last end")
    words.append(_steps_done_twice_sentence(sums))
    return ", ".join(words)


def _steps_done_twice_sentence(totals: Totals) -> str:
    """Steps that were done again; what nobody knows is not 0."""
    if totals.lost is None:
        return "unknown how many steps were done twice: no attempt says how far it came"
    known = f"{totals.lost} step{'' if totals.lost == 1 else 's'} done twice"
    if not totals.untold:
        return known
    return f"at least {known} ({totals.untold} attempt{'' if totals.untold == 1 else 's'} did not say how far)"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 5 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def ending(one: JobAttempt) -> str:
    """Class of the end, and who began it."""
    if one.kind == "unknown":
        return "unknown: its batch script was gone before it could say why" if one.code is None else one.kind
    if one.nodes_lost:
        return f"{one.kind}: {', '.join(one.nodes_lost)}"
    if one.first and one.kind in ("crash", "stall"):
        return f"{one.kind}: rank {one.first.get('rank')} on {one.first.get('node')}"
    return one.kind


def was_running_a_moment_ago(attempt: JobAttempt, now: Optional[float]) -> bool:
    """Whether `job run` was at work on it a moment ago, as its note says."""
    return (
        attempt.kind == UNFINISHED
        and None not in (now, attempt.noted)
        and (now or 0.0) - (attempt.noted or 0.0) < 3 * EVERY
    )


def _row(one: JobAttempt, now: Optional[float]) -> Sequence[str]:
    at_work = was_running_a_moment_ago(one, now)
    seconds = max(0.0, (now or 0.0) - one.started) if at_work else one.seconds
    return (
        one.name,
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.started)),
        duration(seconds) if seconds is not None else "",
        _from(one),
        reached_step_text(one, now),
        lost_steps_text(one),
        "running" if at_work else ending(one),
        _text(one.code),
        _then(one),
    )


def _from(one: JobAttempt) -> str:
    """The step, and where the ranks had it, unless all took it from storage: memory may hold what storage never had."""
    where = one.tier if one.tier not in (None, "", "storage") else ""
    return f"{_text(one.step)} in {where}" if where and one.step is not None else _text(one.step)


def _then(one: JobAttempt) -> str:
    """What followed; before it, what HyperPod did under the attempt's srun, and how its ranks were seen to hang."""
    times = "once" if one.retries == 1 else f"{one.retries} times"
    return "; ".join(filter(None, [f"HyperPod retried its step {times}" if one.retries else "", one.hang, one.then]))


def reached_step_text(attempt: JobAttempt, now: Optional[float]) -> str:
    """The last step; `?` where an attempt that ran did not say it."""
    ran = attempt.kind not in (NONE, UNFINISHED)
    if attempt.moved is not None and now is not None and attempt.reached is not None:
        return f"{attempt.reached}, {duration(max(0.0, now - attempt.moved))} ago"
    return "?" if ran and attempt.reached is None else _text(attempt.reached)


def lost_steps_text(attempt: JobAttempt) -> str:
    """Steps that a later attempt did again; `?` where nobody knows how many."""
    return "?" if attempt.followed and attempt.lost is None else _text(attempt.lost)


def _text(value: object) -> str:
    return "" if value is None else str(value)
