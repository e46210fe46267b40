"""Explain why Slurm ends a run of the batch script, as far as its own records say.

While our script still lives, a job that was cancelled and one that waits for its next run are both COMPLETING, and a
node that failed is in its NodeList no more. What differs (seen with 22.05, 24.11 and 26.05): a job that goes back into
the queue, after a node failure, a preemption or by `scontrol requeue`, has counted that restart already.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from hyperpod_kit.job.base.allocation import FORGOTTEN, LIVE_STATES, Allocation
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.slurm import job_states

_NODE_DOWN = "NodeDown"
_LIMITS = {
    "TIMEOUT": "its time limit",
    "TimeLimit": "its time limit",
    "DEADLINE": "its deadline",
    "DeadLine": "its deadline",
}


class RunEnd(NamedTuple):
    """The reason why a run ended: `kind` is NODE_LOST or one that is `by_slurm`, `explanation` is for people,
    `by_scancel`: somebody has cancelled the job."""

    kind: OutcomeKind
    explanation: str
    by_scancel: bool = False


def explain_run_end(allocation: Allocation, restart: int, signal: Optional[str] = None) -> RunEnd:
    """Return why Slurm, or a signal, has ended the run. `restart` is SLURM_RESTART_COUNT of this run."""
    state, reason = allocation.state, allocation.reason
    if not state:
        return RunEnd(OutcomeKind.UNKNOWN, "was ended, and slurmctld reports no reason")
    if state == FORGOTTEN:
        explanation = "was ended by Slurm, which has no record of the job any more: slurmctld has lost its state"
        return RunEnd(OutcomeKind.UNKNOWN, explanation)
    was_restarted = allocation.restarts is not None and allocation.restarts > restart
    if state in job_states.WAITS or was_restarted:
        return RunEnd(OutcomeKind.REQUEUED, "was ended by Slurm, which has put the job back into the queue")
    if state == "NODE_FAIL" or reason == _NODE_DOWN:
        return RunEnd(OutcomeKind.NODE_LOST, "was ended by Slurm because of a failed node")
    limit = _LIMITS.get(state) or _LIMITS.get(reason)
    if limit:
        return RunEnd(OutcomeKind.CANCELLED, f"was ended by Slurm at {limit}")
    if state in LIVE_STATES:
        explanation = f"was ended by {signal or 'a signal'}, while the job's state in Slurm is {state}"
        return RunEnd(OutcomeKind.CANCELLED, explanation)
    if state in ("CANCELLED", job_states.COMPLETING):
        return RunEnd(OutcomeKind.CANCELLED, "was cancelled", by_scancel=True)
    return RunEnd(OutcomeKind.CANCELLED, f"was ended by Slurm ({state})")
