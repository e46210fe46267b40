"""What only rank 0's agent does: hear all ranks, decide (see coordinator), look, commit, pass the orders on."""

from __future__ import annotations

import sys
from typing import Callable, Dict, List, Optional

from hyperpod_kit.checkpoint.agent import rpc
from hyperpod_kit.checkpoint.agent.agent_captures import Captures
from hyperpod_kit.checkpoint.agent.agent_events import (
    ClearResult,
    CommitCheckResult,
    CommitResult,
    LeaderResult,
    LossNoteResult,
    OwnerCheckResult,
    RetentionResult,
)
from hyperpod_kit.checkpoint.agent.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.coordinator import Coordinator
from hyperpod_kit.checkpoint.agent.failure_counter import FailureCounter
from hyperpod_kit.checkpoint.agent.membership import Membership
from hyperpod_kit.checkpoint.agent.ownership import Ownership
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
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent
from hyperpod_kit.checkpoint.agent.report_texts import ReportDecoder, ReportUpdate
from hyperpod_kit.checkpoint.agent.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.shard_report import ShardReport
from hyperpod_kit.checkpoint.agent.upkeep import Upkeep
from hyperpod_kit.checkpoint.agent.worker import Post, Worker
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
        if capture is not None and checkpoint_id:
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
        reason = self.upkeep.log_problems_and_explain_if_none_deleted(result)
        self._execute(self._coordinator.storage_freeing_ended(result.key, freed=not reason, reason=reason))

    def _execute(self, orders: List[Order]) -> None:
        for order in orders:
            capture = None
            if order.key:
                capture = self._captures.get(order.key)
            if order.kind is OrderKind.CHECK_COMMITTED and capture is not None:
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
