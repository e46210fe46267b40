"""Find out whether a run is one too many: Slurm can take the end of a job that finished for a preemption.

From 24.05 on slurmctld marks a job that it warns of a preemption, and the next end of its batch script is that
preemption to it: it queues the job again, whatever the exit code. `scontrol requeue`, by which `job run` goes back into
the queue at the warning, leaves the mark (GRACE_PREEMPT) where it is, so it falls on the end of a later run; or on that
of the run that was warned, where that finishes within the grace. Seen with 24.11.5; 22.05.8 has no such mark.

A person who queues a finished job again, to train on, does so later than Slurm does. Pure.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from hyperpod_kit.job.decide.outcome_kind import OutcomeKind

WITHIN = 60.0
"""Seconds from the end of the ranks to Slurm's own requeue: it waits for the Epilogs of the nodes."""


def end_of_previous_run_finished_after_warning(
    rows: Sequence[Mapping[str, Any]], restart_count: int
) -> Optional[Mapping[str, Any]]:
    """Return the end of the run before this one, or None unless it finished the job and the job had been warned.

    `rows` are the rows of this job, and `restart_count` is that of this run.
    """
    last: Optional[Mapping[str, Any]] = None
    is_done = was_warned = False
    for row in rows:
        if row.get("event") != "ended":
            continue
        if is_done:
            was_warned = False
        kind = OutcomeKind.of_row(row)
        is_handed_back = kind is not None and kind.is_handed_back
        was_warned = was_warned or bool(row.get("warned")) or is_handed_back
        is_done = kind is OutcomeKind.DONE
        last = row
    if last is None or not is_done or last.get("restart") != restart_count - 1:
        return None
    if not was_warned:
        return None
    return last


def is_requeued_within_minute_of_end(end: Mapping[str, Any], queued_at: float) -> bool:
    """Return whether it was Slurm that put the job back into the queue.

    `queued_at` is when that was, in Unix seconds, and 0 where it is not known.
    """
    return 0.0 < queued_at <= float(end.get("t") or 0.0) + WITHIN
