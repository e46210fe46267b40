"""Save and free what jobs left in shared memory here. One round of a timer: bounded, and never of a living job.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set

from hyperpod_kit.errors import RunError
from hyperpod_kit.model.units import MEMORY_UNIT, flush_unit
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, try_write_volatile_json
from hyperpod_kit.node.machine.locks import hold_lock as hold_lock
from hyperpod_kit.node.memory import user_directory
from hyperpod_kit.node.memory.orphaned_snapshots import (
    NO_JOB,
    OrphanedSnapshots,
    has_job_left_node,
    jobs_with_stepd,
    list_snapshot_owners,
)
from hyperpod_kit.node.slurm.drain import slurm_program_path_or_name
from hyperpod_kit.slurm import records
from hyperpod_kit.system.wait import BackOff

SECONDS = 60.0
"""That one round may take, and one write more: other jobs come in the next."""

FLUSH_SECONDS = 45.0
"""For one user's captures of one job, as in the Epilog."""

LONGEST_PAUSE = 1800.0

SLOW = "slow."


@dataclass(frozen=True)
class CleanupOutcome:
    """What became of one job's captures. done: nothing of it is left to do here; lost: something whole was given up."""

    job: str
    uid: int
    done: bool
    summary: str
    lost: bool = False


def save_and_free_ended_jobs_memory(node: Node) -> Optional[List[CleanupOutcome]]:
    """Save and free, in one round, what ended jobs left in shared memory; None when another round is at it.
    Raises OSError when shared memory cannot be listed."""
    with hold_lock(node, "memory", seconds=0) as locked:
        if locked:
            return _save_and_free_ended_jobs_memory(node)
        return None


def _save_and_free_ended_jobs_memory(node: Node) -> List[CleanupOutcome]:
    end = node.clock.monotonic() + SECONDS
    folder = node.paths.shared_memory
    user_directory.ensure_user_directory(node, "", asked_by=MEMORY_UNIT)
    tried: Dict[str, Any] = read_json(node.paths.memory_retry_note) or {}
    noted: Dict[str, Any] = {
        key: value
        for key, value in tried.items()
        if key.startswith(SLOW) and 0 <= node.clock.wall() - value["at"] < LONGEST_PAUSE
    }
    outcomes: List[CleanupOutcome] = []
    slow: Set[int] = set()
    # Whose captures took their whole time comes after those whose did not, and once a round: nobody holds up others.
    orphans = sorted(
        list_snapshot_owners(folder), key=lambda orphan: noted.get(f"{SLOW}{orphan.uid}", {"at": 0.0})["at"]
    )
    if orphans:
        running_jobs = jobs_with_stepd(node.paths.proc)
    else:
        running_jobs = set()
    for snapshots in orphans:
        if snapshots.alive or snapshots.job in running_jobs or snapshots.uid in slow:
            continue
        before = tried.get(f"{snapshots.uid}.{snapshots.job}", {})
        noted[f"{snapshots.uid}.{snapshots.job}"] = before
        if _is_backing_off(before, node.clock.wall()) or node.clock.monotonic() >= end:
            continue
        try:
            started_at = node.clock.monotonic()
            done = _save_and_free_if_ended(node, folder, snapshots)
            if node.clock.monotonic() - started_at > FLUSH_SECONDS / 2:
                slow.add(snapshots.uid)
                noted[f"{SLOW}{snapshots.uid}"] = {"at": node.clock.wall()}
        except RunError as err:
            # Asked again at each round, and told of once: it costs nothing until Slurm is back.
            if not before.get("unanswered"):
                outcomes.append(
                    CleanupOutcome(
                        snapshots.job, snapshots.uid, False, f"Slurm cannot be queried about it: {err.message}"
                    )
                )
            noted[f"{snapshots.uid}.{snapshots.job}"] = {**before, "unanswered": True}
            continue
        if done is None:
            continue
        tries = before.get("tries", 0) + 1
        noted[f"{snapshots.uid}.{snapshots.job}"] = {
            "tries": tries,
            "next": node.clock.wall() + BackOff(60.0, LONGEST_PAUSE).pause_seconds(tries),
        }
        outcomes.append(done)
    if noted or tried:
        try_write_volatile_json(node.paths.memory_retry_note, noted)
    return outcomes


def _is_backing_off(before: Dict[str, Any], now: float) -> bool:
    """Whether the next try is yet to come. A clock that was set back must not put it off for good."""
    pause = float(before.get("next", 0.0)) - now
    return 0 < pause <= LONGEST_PAUSE


def _save_and_free_if_ended(node: Node, folder: str, snapshots: OrphanedSnapshots) -> Optional[CleanupOutcome]:
    """Save and free the snapshots, itself or by a unit, when Slurm lists the job here no more; None when it
    does. Raises RunError where Slurm does not respond."""
    if snapshots.job == NO_JOB:
        # Of all jobs, what is older than MAX_AGE and whose trainers are dead: that is all that a flush takes unasked.
        return _flush_as_owner(folder, snapshots, job="none")
    try:
        job_records = records.query_squeue(
            node.runner, snapshots.job, squeue=slurm_program_path_or_name(node, "squeue")
        )
    except records.UnknownJob:
        job_records = []
    if not has_job_left_node(node.facts.node, job_records):
        return None
    if os.path.isdir(node.paths.under_root("/run/systemd/system")):
        # As the Epilog does it: some nodes hold more than a minute can save. One that runs already is not started.
        unit = flush_unit(snapshots.job, 0, snapshots.uid)
        node.runner.run(["systemctl", "--no-block", "start", unit], timeout=10)
        return CleanupOutcome(snapshots.job, snapshots.uid, False, f"{unit} handles them")
    return _flush_as_owner(folder, snapshots, job=snapshots.job)


def _flush_as_owner(folder: str, snapshots: OrphanedSnapshots, *, job: str) -> Optional[CleanupOutcome]:
    """Flush the snapshots as the user that owns them, and return what became of them; None when there is
    nothing to report: somebody may come yet for what lies there."""
    from hyperpod_kit.checkpoint.agent.flush import flush_users  # seldom needed, and dear to what runs each minute
    from hyperpod_kit.checkpoint.agent.shm.capture_age import MAX_AGE

    outcomes = flush_users.flush_as(
        snapshots.uid, folder=folder, job=job, timeout=FLUSH_SECONDS, max_age=MAX_AGE, asked_by=MEMORY_UNIT
    )
    if snapshots.job == NO_JOB and not outcomes:
        return None
    return CleanupOutcome(
        snapshots.job,
        snapshots.uid,
        all(outcome.removed for outcome in outcomes),
        "; ".join(outcome.note for outcome in outcomes) or "nothing is left",
        any(outcome.lost for outcome in outcomes),
    )
