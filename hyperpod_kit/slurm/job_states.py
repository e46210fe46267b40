"""Slurm's words for a job's state, by what they mean for who holds something of the job's.

squeue prints one word: a flag where the job has one (COMPLETING before all others, then STAGE_OUT, CONFIGURING,
EXPEDITING, RESIZING, …), else its base state. A flag says little of whether the script runs. EXPEDITING, RESV_DEL_HOLD
and POWER_UP_NODE are newer than 22.05.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

COMPLETING = "COMPLETING"
"""Of a job that ends for good, and of one that will run again."""

RUNS = ("RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "RESIZING")
"""The batch script goes on, or is about to begin. SIGNALING and STOPPED: somebody sends SIGSTOP or SIGCONT; RESIZING:
nodes are being taken or given, as HyperPod's step retry does."""

WAITS = (
    "PENDING",
    "EXPEDITING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "POWER_UP_NODE",
)
"""The job is in the queue, perhaps held, and may run (again)."""

COMING_BACK = (*RUNS, *WAITS, "STAGE_OUT")
"""The script runs or may run again: what is the job's must not be given to another one."""

HAS_NODES = (*RUNS, COMPLETING, "STAGE_OUT")
"""The job has its nodes: an Epilog is still to come, or is at work."""
