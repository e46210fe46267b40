"""Why Slurm ends a run of the batch script, as far as its own records say.

While our script still lives, a job that was cancelled and one that waits for its next run are both COMPLETING, and a
node that failed is in its NodeList no more. What differs (seen with 22.05, 24.11 and 26.05): a job that goes back into
the queue, after a node failure, a preemption or by `scontrol requeue`, has counted that restart already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from hyperpod_kit.job.allocation import FORGOTTEN, LIVE_STATES, Allocation
from hyperpod_kit.slurm import job_states

REQUEUED, NODE_LOST, CANCELLED, UNKNOWN = "requeued", "node_lost", "cancelled", "unknown"

_NODE_DOWN = "NodeDown"
_LIMITS = {
    "TIMEOUT": "its time limit",
    "TimeLimit": "its time limit",
    "DEADLINE": "its deadline",
    "DeadLine": "its deadline",
}


@dataclass(frozen=True)
class End:
    """`kind`: one of the four above, which are classes of outcome.py as well; `words`: for people."""

    kind: str
    words: str


def why(seen: Allocation, restart: int, signal: Optional[str] = None) -> End:
    """Of a run that Slurm has ended, or that a signal has. `restart`: SLURM_RESTART_COUNT of this run."""
    if not seen.state:
        return End(UNKNOWN, "was ended, and slurmctld does not say why")
    if seen.state == FORGOTTEN:
        return End(UNKNOWN, "was ended by Slurm, which no longer knows the job: slurmctld has lost its state")
    if seen.state in job_states.WAITS or (seen.restarts is not None and seen.restarts > restart):
        return End(REQUEUED, "was ended by Slurm, which has put the job back into the queue")
    if seen.state == "NODE_FAIL" or seen.reason == _NODE_DOWN:
        return End(NODE_LOST, "was ended by Slurm because of a node")
    limit = _LIMITS.get(seen.state) or _LIMITS.get(seen.reason)
    if limit:
        return End(CANCELLED, f"was ended by Slurm at {limit}")
    if seen.state in LIVE_STATES:
        return End(CANCELLED, f"was told to end by {signal or 'a signal'}, while Slurm has the job as {seen.state}")
    if seen.state in ("CANCELLED", job_states.COMPLETING):
        return End(CANCELLED, "was cancelled")
    return End(CANCELLED, f"was ended by Slurm ({seen.state})")
