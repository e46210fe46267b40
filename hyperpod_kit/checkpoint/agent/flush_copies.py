"""What a flush does with copies of other nodes' captures: what storage has by now is freed, the rest waits for it.

A flush brings to storage what its own node's ranks captured, and a copy's owner does the same on its node. A copy is
the only one left where that node is dead, so it stays until storage has the capture or a newer one. It is given up,
and the outcome says so, at twice the age of a capture: by then its owner's node has saved that one or given it up.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

from hyperpod_kit.checkpoint.agent import capture_age, flush_captures, loss_log, partner_memory, shm_slots
from hyperpod_kit.checkpoint.agent.capture_age import BootMoment, Clock
from hyperpod_kit.checkpoint.agent.shm_slots import OpenSlot
from hyperpod_kit.checkpoint.repository import verify
from hyperpod_kit.errors import CheckpointError

_TWICE = 2


class CopiesOutcome(NamedTuple):
    """Of one run's copies on this node. `waiting`: what stays, `lost`: what was given up; "" for nothing."""

    run: str
    waiting: str
    lost: str


def free_saved_or_expired_copies(
    folder: str, run: str, job: Optional[str], max_age: float, clock: Clock
) -> Optional[CopiesOutcome]:
    """Free the copies of a run that storage has by now, and give up expired ones: those of job `job`, of all
    for None, or too old ones.

    Returns None where there is nothing to say, also while an agent of the run is at work. Raises
    CheckpointError, OSError.
    """
    locks = partner_memory.try_lock_all_agents(folder, run)
    if locks is None:
        return None  # an agent is at work: it renews its copies, and frees them
    try:
        return _free_copies_under_locks(folder, run, job, max_age, clock)
    finally:
        for taken in locks:
            taken.release()


def _free_copies_under_locks(
    folder: str, run: str, job: Optional[str], max_age: float, clock: Clock
) -> Optional[CopiesOutcome]:
    partner_memory.remove_incomplete_copies(folder, run)
    copies_directory = partner_memory.copies_directory(folder)
    copies: List[OpenSlot] = []
    for slot in shm_slots.attach_each_mappable(copies_directory, partner_memory.copy_slot_names(copies_directory, run)):
        page = slot.page
        if page is not None:
            copies.append(shm_slots.ensure_dated(OpenSlot(slot, page), clock))
    try:
        return _free_saved_and_expired_copies(copies_directory, run, copies, job, max_age, clock)
    finally:
        for copy in copies:
            copy.slot.close()


def _free_saved_and_expired_copies(
    copies_directory: str, run: str, copies: List[OpenSlot], job: Optional[str], max_age: float, clock: Clock
) -> Optional[CopiesOutcome]:
    """None when there is nothing to say to whoever asked for `job`."""
    moment = clock()
    candidates = _all_copies_if_of_job_else_expired(copies, job, max_age, moment)
    if not candidates:
        return None
    committed, problem = _newest_committed_epoch_seq_or_reason(candidates[0])
    unsaved = [copy for copy in candidates if committed is None or copy.page.key[:2] > committed]
    given_up = [copy for copy in unsaved if capture_age.is_known_to_be_expired(copy.page, _TWICE * max_age, moment)]
    waiting = [copy for copy in unsaved if copy not in given_up]
    loss = ""
    if given_up:
        loss = f"{_describe_copies(given_up)}, given up after {_TWICE * max_age / 3600:g} hours{problem}"
    if loss:
        loss_log.record_loss_in_audit_log(run, loss)
    for copy in candidates:
        if copy not in waiting:
            shm_slots.remove(copies_directory, copy.slot.name)
    unfinished = ""
    if waiting:
        unfinished = f"{_describe_copies(waiting)}, not on storage yet{problem}"
    if unfinished or loss:
        return CopiesOutcome(run, unfinished, loss)
    return None


def _all_copies_if_of_job_else_expired(
    copies: List[OpenSlot], job: Optional[str], max_age: float, moment: BootMoment
) -> List[OpenSlot]:
    """All of the run where a copy is of `job`, or none is named; else those that are too old."""
    is_of_job = job is None or any(str(copy.page.origin.job.get("slurm_job_id")) == job for copy in copies)
    return [copy for copy in copies if is_of_job or capture_age.is_known_to_be_expired(copy.page, max_age, moment)]


def _newest_committed_epoch_seq_or_reason(copy: OpenSlot) -> Tuple[Optional[Tuple[int, int]], str]:
    """((epoch, seq) of the newest commit, None where nobody can say; and then why, in words that go on a sentence)."""
    try:
        return flush_captures.open_storage_and_find_newest_epoch_seq(copy.page)[1], ""
    except (CheckpointError, OSError) as err:
        return None, f": {verify.describe_failure(err)}"


def _describe_copies(copies: List[OpenSlot]) -> str:
    ranks = ", ".join(map(str, sorted({copy.page.origin.rank for copy in copies})))
    steps = flush_captures.describe_steps(copy.page for copy in copies)
    return f"copies of what rank {ranks} captured on another node, {steps}"
