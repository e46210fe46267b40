"""The table of `job status`: a line for each attempt, for people to read."""

from __future__ import annotations

from typing import Optional, Sequence

from hyperpod_kit.command_line.tables import Column, format_rows, format_utc
from hyperpod_kit.job.base.durations import describe_duration
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.status.timeline import NONE, UNFINISHED, JobAttempt, Totals
from hyperpod_kit.job.step.step_note import EVERY

COLUMNS = (
    "ATTEMPT",
    "STARTED",
    "TOOK",
    Column("FROM STEP", may_miss=True),
    "REACHED",
    "LOST",
    Column("ENDED AS", folds=True),
    Column("CODE", may_miss=True),
    Column("THEN", folds=True, may_miss=True),
)


def table(attempts: Sequence[JobAttempt], sums: Totals, more: Sequence[str] = (), now: Optional[float] = None) -> str:
    """Return the table: a line for each attempt, then the totals and the lines `more`.

    `?`: not known; an empty field: there is nothing to know. `now`: Unix seconds, for the attempt that still runs.
    """
    rows = [_row(attempt, now) for attempt in attempts]
    return "\n".join([format_rows(COLUMNS, rows), sentence(sums), *more]) + "\n"


def sentence(sums: Totals) -> str:
    """Return the totals as a sentence."""
    parts = [_counted(sums.attempts, "attempt")]
    if sums.wall:
        parts.append(f"{describe_duration(sums.wall)} from the first start to the last end")
    parts.append(_steps_done_twice_sentence(sums))
    return ", ".join(parts)


def _steps_done_twice_sentence(totals: Totals) -> str:
    """Return how many steps were done again; an unknown number is not 0."""
    if totals.lost is None:
        return "the number of steps done twice is unknown: no attempt recorded its last step"
    steps_text = f"{_counted(totals.lost, 'step')} done twice"
    if not totals.untold:
        return steps_text
    return f"at least {steps_text} ({_counted(totals.untold, 'attempt')} did not record a last step)"


def _counted(number: int, noun: str) -> str:
    """Return `1 step`, `2 steps`."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def ending(attempt: JobAttempt) -> str:
    """Return the class of the end, and the nodes that were lost or the rank that failed first."""
    kind = OutcomeKind.parse(attempt.kind)
    if kind is OutcomeKind.UNKNOWN and attempt.code is None:
        return "unknown: the batch script was gone before it recorded a reason"
    if kind is OutcomeKind.UNKNOWN:
        return attempt.kind
    if attempt.nodes_lost:
        return f"{attempt.kind}: {', '.join(attempt.nodes_lost)}"
    if attempt.first and kind is not None and kind.costs_budget:
        return f"{attempt.kind}: rank {attempt.first.get('rank')} on {attempt.first.get('node')}"
    return attempt.kind


def was_running_a_moment_ago(attempt: JobAttempt, now: Optional[float]) -> bool:
    """Return whether `job run` was at work on the attempt a moment ago, as its note says."""
    if attempt.kind != UNFINISHED or now is None or attempt.noted is None:
        return False
    return now - attempt.noted < 3 * EVERY


def _row(attempt: JobAttempt, now: Optional[float]) -> Sequence[str]:
    if was_running_a_moment_ago(attempt, now):
        seconds: Optional[float] = max(0.0, (now or 0.0) - attempt.started)
        ended_as = "running"
    else:
        seconds = attempt.seconds
        ended_as = ending(attempt)
    duration = ""
    if seconds is not None:
        duration = describe_duration(seconds)
    return (
        attempt.name,
        format_utc(attempt.started),
        duration,
        _from(attempt),
        reached_step_text(attempt, now),
        lost_steps_text(attempt),
        ended_as,
        _text(attempt.code),
        _then(attempt),
    )


def _from(attempt: JobAttempt) -> str:
    """Return the step, and where the ranks had it unless all took it from storage.

    Memory may hold a step that storage never had.
    """
    if attempt.step is None or attempt.tier in (None, "", "storage"):
        return _text(attempt.step)
    return f"{_text(attempt.step)} in {attempt.tier}"


def _then(attempt: JobAttempt) -> str:
    """Return what followed; before it, how often HyperPod retried the step, and how its ranks were seen to hang."""
    retried = ""
    if attempt.retries == 1:
        retried = "HyperPod retried its step once"
    elif attempt.retries:
        retried = f"HyperPod retried its step {attempt.retries} times"
    return "; ".join(filter(None, [retried, attempt.hang, attempt.then]))


def reached_step_text(attempt: JobAttempt, now: Optional[float]) -> str:
    """Return the last step and, for an attempt at work, its age; `?` where an attempt that ran did not report it."""
    if attempt.moved is not None and now is not None and attempt.reached is not None:
        return f"{attempt.reached}, {describe_duration(max(0.0, now - attempt.moved))} ago"
    has_ended = attempt.kind not in (NONE, UNFINISHED)
    if has_ended and attempt.reached is None:
        return "?"
    return _text(attempt.reached)


def lost_steps_text(attempt: JobAttempt) -> str:
    """Return how many steps a later attempt did again; `?` where that is not known."""
    if attempt.followed and attempt.lost is None:
        return "?"
    return _text(attempt.lost)


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value)
