"""What only rank 0's agent does: hear all ranks, decide (see coordinator), look, commit, pass the orders on."""

from __future__ import annotations

import sys
import time
from typing import Callable, Dict, List, Optional, Set

from hyperpod_kit.checkpoint.agent.leader.coordinator import Coordinator
from hyperpod_kit.checkpoint.agent.leader.failure_counter import FailureCounter
from hyperpod_kit.checkpoint.agent.process.agent_captures import Capture, Captures
from hyperpod_kit.checkpoint.agent.process.agent_events import (
    ClearResult,
    CommitCheckResult,
    CommitResult,
    LeaderResult,
    LossNoteResult,
    OwnerCheckResult,
    RetentionResult,
)
from hyperpod_kit.checkpoint.agent.process.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.process.worker import Post, Worker
from hyperpod_kit.checkpoint.agent.protocol.message import assert_never
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import (
    Order,
    OrderKind,
    RankCaptured,
    RankDone,
    RankFailed,
    RankHurried,
    RankJoined,
    RankLocal,
    RankPersisted,
    RankReport,
    RankSealed,
    RankSkipped,
    RankTensors,
    RankText,
)
from hyperpod_kit.checkpoint.agent.protocol.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent, AgentTrouble
from hyperpod_kit.checkpoint.agent.reports.report_texts import ReportDecoder, ReportUpdate
from hyperpod_kit.checkpoint.agent.reports.shard_report import ShardReport
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.wire import rpc
from hyperpod_kit.checkpoint.repository import retention
from hyperpod_kit.checkpoint.repository.store.base import NO_ROOM

_UNSAVED_ENDS = (OrderKind.DROPPED, OrderKind.FAILED, OrderKind.OVERTAKEN, OrderKind.REFUSED)


class Leader:
    """The coordinator with its effects. Used from the agent's main thread; `deliver` hands an order to this rank, and
    `send_event` an event to its trainer; `is_trainer_alive`: that trainer lives."""

    def __init__(
        self,
        setup: AgentSetup,
        hub: rpc.Hub,
        captures: Captures,
        storage: Storage,
        post: Post,
        deliver: Callable[[Order], None],
        send_event: Callable[[AgentEvent], None],
        failure_counter: FailureCounter,
        *,
        is_trainer_alive: Callable[[], bool],
    ) -> None:
        self.hub = hub
        self._coordinator = Coordinator(setup.world, local=storage.local is not None)
        self._texts = ReportDecoder()
        self._captures = captures
        self._storage = storage
        self._deliver = deliver
        self.worker = Worker("commit", post)
        self.failure_counter = failure_counter
        self.membership = Membership()
        self.upkeep = Upkeep(storage, post, send_event)
        self._ownership = Ownership(setup.incarnation, is_trainer_alive)

    def on_report(self, rank: int, report: RankReport) -> None:
        """What the agent of `rank` reports."""
        coordinator = self._coordinator
        if isinstance(report, RankJoined):
            self._on_joined(rank)
        elif isinstance(report, RankDone):
            self.membership.set_done(rank)
            self._execute(coordinator.rank_done(rank, "its trainer is gone"))
        elif isinstance(report, RankCaptured):
            self._execute(
                coordinator.captured(
                    rank,
                    report.key,
                    from_earlier_start=report.adopted,
                    is_memory_only=report.memory,
                    replica_digests=report.replicas,
                )
            )
        elif isinstance(report, RankTensors):
            self._execute(
                coordinator.refuse_capture_once_replica_tensors_reported(rank, report.key, report.tensors or None)
            )
        elif isinstance(report, RankSealed):
            self._execute(coordinator.sealed(rank, report.key))
        elif isinstance(report, RankSkipped):
            self._execute(coordinator.skipped(rank, report.key, report.reason))
        elif isinstance(report, RankPersisted):
            self._apply_update(self._texts.add_report(rank, report.key, report.report))
        elif isinstance(report, RankText):
            self._apply_update(self._texts.add_text(rank, report.key, report.digest, report.text))
        elif isinstance(report, RankLocal):
            self._execute(coordinator.local_written(rank, report.key, report.is_present))
        elif isinstance(report, RankFailed):
            self._submit_check_for_newer_start(report.key)
            self._execute(coordinator.failed(rank, report.key, report.reason, is_storage_full=report.full))
        elif isinstance(report, RankHurried):
            self._execute(coordinator.set_hurried_and_persist_newest_in_memory())
        else:
            assert_never(report)

    def on_disconnected(self, rank: int) -> None:
        """The agent of `rank` is gone."""
        self._apply_update(self._texts.remove_rank(rank))
        if not self.membership.start_rejoin_deadline(rank):
            self._execute(self._coordinator.rank_lost(rank))

    def _on_joined(self, rank: int) -> None:
        """An agent that was lost, or the next one of its rank, reports what it holds by itself; so do all others when
        this agent has missed something."""
        self._apply_update(self._texts.remove_rank(rank))
        if self.membership.clear_missing(rank):
            self._coordinator.forget_all_unfinished_captures(rank)
            self._broadcast(Order(OrderKind.RESYNC, None))

    def expire_missing_ranks(self) -> None:
        """Give up those that have been away for too long."""
        for rank in self.membership.expire_missing():
            self._execute(self._coordinator.rank_lost(rank))

    def _apply_update(self, update: ReportUpdate) -> None:
        """Reports that are whole now, and what is to be asked."""
        for rank, key, report in update.reports:
            self._execute(self._coordinator.persisted(rank, key, report))
        for rank, key, failure in update.failed:
            self._execute(self._coordinator.failed(rank, key, failure))
        for rank, key, text_digest in update.requests:
            order = Order(OrderKind.SEND_TEXT, key, text_digest, (rank,))
            if rank == 0:
                self._deliver(order)
            else:
                self.hub.send_to(rank, order.to_json())

    def on_result(self, result: LeaderResult) -> None:
        """What a job for all ranks gave."""
        if isinstance(result, CommitCheckResult):
            self.on_storage_checked(result.key, result.checkpoint_id, result.failure)
        elif isinstance(result, CommitResult):
            self.on_commit_finished(result)
        elif isinstance(result, RetentionResult):
            self.upkeep.on_retention(result)
        elif isinstance(result, ClearResult):
            self._on_storage_freeing_ended(result)
        elif isinstance(result, OwnerCheckResult):
            if result.taken_by:
                self._record_and_broadcast_root_taken(result.taken_by)
        elif isinstance(result, LossNoteResult):
            self.failure_counter.on_row_written(result.failure)
        else:
            assert_never(result)

    def on_storage_checked(self, key: Key, checkpoint_id: Optional[str], failure: str) -> None:
        """Storage has that capture as `checkpoint_id`, or not, or could not be asked."""
        capture = self._captures.get(key)
        if capture is not None:
            capture.jobs.discard("check")
            if checkpoint_id:
                capture.checkpoint_id = checkpoint_id
        if failure:
            # It may be there or not; a second copy does no harm, none at all would.
            print(f"capture {key}: {failure}", file=sys.stderr, flush=True)
        self._execute(self._coordinator.storage_checked(key, bool(checkpoint_id)))

    def on_commit_finished(self, result: CommitResult) -> None:
        """Take the result of a commit: written, failed, or written after a newer start took the root."""
        key, commit, failure, error_number = result
        capture = self._captures.get(key)
        if capture is not None:
            capture.jobs.discard("commit")
        if commit is None:
            self._submit_check_for_newer_start(key)
            self._execute(self._coordinator.failed(0, key, failure, is_storage_full=error_number in NO_ROOM))
        elif commit.taken_by:
            self._record_and_broadcast_root_taken(commit.taken_by)
            self._execute(self._coordinator.failed(0, key, commit.taken_by))
        else:
            self._execute(self._coordinator.committed(key))
            self.upkeep.start_retention(key)

    def _submit_check_for_newer_start(self, key: Key) -> None:
        """A save failed: a newer start may have the root, and have deleted what was being written."""
        if self._ownership.is_own_live_capture(key) and not self._ownership.taken_by:
            self.worker.submit(OwnerCheckResult, key, self._storage.describe_newer_start(key[0]))

    def _record_and_broadcast_root_taken(self, message: str) -> None:
        """Record that a newer start has the root, and send that to all agents: from now on nothing is committed."""
        if not self._ownership.taken_by:
            self._ownership.taken_by = message
            print(message, file=sys.stderr, flush=True)
            self._broadcast(Order(OrderKind.TAKEN, None, message))

    def _on_storage_freeing_ended(self, result: ClearResult) -> None:
        """Something was given up for a save that had no room, or nothing could be."""
        capture = self._captures.get(result.key)
        if capture is not None:
            capture.jobs.discard("clear")
        reason = self.upkeep.log_problems_and_explain_if_none_deleted(result)
        self._execute(self._coordinator.storage_freeing_ended(result.key, freed=not reason, reason=reason))

    def _execute(self, orders: List[Order]) -> None:
        for order in orders:
            capture = None
            if order.key:
                capture = self._captures.get(order.key)
            if order.kind is OrderKind.CHECK_COMMITTED and capture is not None:
                capture.jobs.add("check")
                self.worker.submit(
                    CommitCheckResult, capture.key, self._storage.find_checkpoint_id_if_committed(capture)
                )
            elif order.kind is OrderKind.COMMIT and capture is not None and self._ownership.taken_by:
                self._execute(self._coordinator.failed(0, capture.key, self._ownership.taken_by))
            elif order.kind is OrderKind.COMMIT and capture is not None:
                capture.jobs.add("commit")
                reports: Dict[int, ShardReport] = dict(self._coordinator.reports(capture.key))
                job = self._storage.commit(
                    capture, reports, checks_newer_start=self._ownership.is_own_live_capture(capture.key)
                )
                self.worker.submit(CommitResult, capture.key, job)
            elif order.kind is OrderKind.CLEAR and capture is not None:
                capture.jobs.add("clear")
                self.upkeep.start_making_room(capture)
            else:
                if order.kind is OrderKind.COMMITTED and capture is not None:
                    order = order._replace(note=capture.checkpoint_id)
                if order.kind in _UNSAVED_ENDS and capture is not None:
                    self.upkeep.add_abandoned(capture.checkpoint_id)
                self.failure_counter.count_ended_save_and_write_note(order)
                self._broadcast(order)

    def _broadcast(self, order: Order) -> None:
        self.hub.broadcast(order.to_json())
        self._deliver(order)


# Which ranks' agents are away, and for how long rank 0's waits for them.


class Membership:
    """`hurried`: nobody trains here any more, so no agent is waited for."""

    def __init__(self) -> None:
        self.hurried = False
        self._deadlines: Dict[int, float] = {}
        self._done: Set[int] = set()
        self._given_up: Set[int] = set()

    def set_done(self, rank: int) -> None:
        """Its trainer is gone: it may leave."""
        self._done.add(rank)

    def start_rejoin_deadline(self, rank: int) -> bool:
        """Start to wait for another agent of a rank that has disconnected; return False when none is waited for,
        because the rank is done or nobody trains any more."""
        if self.hurried or rank in self._done:
            return False
        self._deadlines[rank] = time.monotonic() + rpc.REJOIN
        return True

    def clear_missing(self, rank: int) -> bool:
        """Record that the agent of a rank, or the next one, is there; return whether it was missing."""
        was_missing = self._deadlines.pop(rank, None) is not None or rank in self._given_up
        self._given_up.discard(rank)
        return was_missing

    def expire_missing(self) -> List[int]:
        """Those that have been away for too long; they are not waited for any more."""
        now = time.monotonic()
        expired = [rank for rank, deadline in self._deadlines.items() if self.hurried or now > deadline]
        for rank in expired:
            del self._deadlines[rank]
            self._given_up.add(rank)
        return expired


# Whether this start still has the root, as far as rank 0's agent knows.


class Ownership:
    """`incarnation`: of this start. `is_trainer_alive`: its trainer lives, and waits for what becomes of its saves.

    A dead trainer is misled by nobody: what it has left is brought to storage whoever has started since. `taken_by`:
    who has the root in this start's place.
    """

    def __init__(self, incarnation: str, is_trainer_alive: Callable[[], bool]) -> None:
        self._incarnation, self._is_trainer_alive = incarnation, is_trainer_alive
        self.taken_by = ""

    def is_own_live_capture(self, key: Key) -> bool:
        """Whether this start made that capture, and its trainer will hear that it is durable."""
        return key[2] == self._incarnation and self._is_trainer_alive()


# What rank 0's agent does with old checkpoints: retention behind each commit, and room for a save that found none.
#
# In a thread of its own, since it may read checkpoints back for a long time: no commit waits for it.

_MOST_LOGGED = 100


class Upkeep:
    """Used from the agent's main thread. `send_event` an event to this rank's trainer."""

    def __init__(self, storage: Storage, post: Post, send_event: Callable[[AgentEvent], None]) -> None:
        self._storage, self._send_event = storage, send_event
        self.worker = Worker("keep", post)
        self.busy = False
        """Behind a commit there is still to be cleaned up."""
        self._due = False
        self._abandoned: Set[str] = set()
        self._logged: Set[str] = set()

    def add_abandoned(self, checkpoint_id: str) -> None:
        """The save that was written there has had its end: what lies there is of no use."""
        self._abandoned.add(checkpoint_id)

    def start_retention(self, key: Key) -> None:
        """Clean up behind the commit of `key`; while that goes on for an earlier one, once more after it."""
        self._due = self.busy
        if not self.busy:
            self.busy = True
            self.worker.submit(RetentionResult, key, self._storage.apply_retention(frozenset(self._abandoned)))

    def on_retention(self, result: RetentionResult) -> None:
        """Log what retention did, and start it again when another commit came meanwhile."""
        self.busy = False
        if result.applied is not None:
            self._report_undeleted_and_damaged_forget_deleted(result.applied)
        if result.failure:
            self._log_once(f"old checkpoints were not deleted: {result.failure}")
        if self._due:
            self.start_retention(result.key)

    def start_making_room(self, capture: Capture) -> None:
        """Give something up for a save that had no room."""
        job = self._storage.make_room(capture, frozenset(self._abandoned))
        self.worker.submit(ClearResult, capture.key, job)

    def log_problems_and_explain_if_none_deleted(self, result: ClearResult) -> str:
        """Why nothing was given up; "" when something was."""
        if result.applied is None:
            return result.failure
        self._report_undeleted_and_damaged_forget_deleted(result.applied)
        if result.applied.deleted:
            return ""
        return "the policy allows no checkpoint to be deleted for it"

    def _report_undeleted_and_damaged_forget_deleted(self, applied: retention.Applied) -> None:
        """Each reason is said once."""
        self._abandoned.difference_update(applied.deleted)
        for checkpoint_id, reason in applied.remaining:
            self._log_once(f"old checkpoints were not deleted: {checkpoint_id}: {reason}")
        for checkpoint_id, reason in applied.damaged:
            text = f"checkpoint {checkpoint_id} was read back and differs from what was committed: {reason}"
            if self._log_once(text):
                self._send_event(AgentTrouble(f"{text}; an older checkpoint is kept instead"))

    def _log_once(self, text: str) -> bool:
        """Write a text to the agent's log unless it was written before or the limit is reached; return whether it
        was written."""
        if text in self._logged or len(self._logged) >= _MOST_LOGGED:
            return False
        self._logged.add(text)
        print(text, file=sys.stderr, flush=True)
        return True
