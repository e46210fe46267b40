"""What only rank 0's agent does: hear all ranks, decide (see coordinator), look, commit, pass the orders on."""

from __future__ import annotations

import sys
from typing import Callable, Dict, List, Optional

from hyperpod_kit.checkpoint.agent import rpc
from hyperpod_kit.checkpoint.agent.agent_captures import Captures
from hyperpod_kit.checkpoint.agent.agent_events import (
    ClearResult,
    CommitResult,
    LeaderResult,
    LookResult,
    LossNoteResult,
    RetentionResult,
    TakenResult,
)
from hyperpod_kit.checkpoint.agent.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.attendance import Attendance
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.coordinator import Coordinator
from hyperpod_kit.checkpoint.agent.ownership import Ownership
from hyperpod_kit.checkpoint.agent.protocol.message import never
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
from hyperpod_kit.checkpoint.agent.report_texts import Heard, Texts
from hyperpod_kit.checkpoint.agent.saves_counted import Counted
from hyperpod_kit.checkpoint.agent.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.shard_report import ShardReport
from hyperpod_kit.checkpoint.agent.upkeep import Upkeep
from hyperpod_kit.checkpoint.agent.worker import Post, Worker
from hyperpod_kit.checkpoint.repository.store.base import NO_ROOM

_CAME_TO_NOTHING = (OrderKind.DROPPED, OrderKind.FAILED, OrderKind.OVERTAKEN, OrderKind.REFUSED)


class Leader:
    """The coordinator with its effects. Used from the agent's main thread; `deliver` hands an order to this rank, and
    `tell` an event to its trainer; `is_heard`: that trainer lives."""

    def __init__(
        self,
        setup: AgentSetup,
        hub: rpc.Hub,
        captures: Captures,
        storage: Storage,
        post: Post,
        deliver: Callable[[Order], None],
        tell: Callable[[AgentEvent], None],
        counted: Counted,
        *,
        is_heard: Callable[[], bool],
    ) -> None:
        self.hub = hub
        self._coordinator = Coordinator(setup.world, local=storage.local is not None)
        self._texts = Texts()
        self._captures = captures
        self._storage = storage
        self._deliver = deliver
        self.worker = Worker("commit", post)
        self.counted = counted
        self.attendance = Attendance()
        self.upkeep = Upkeep(storage, post, tell)
        self._ownership = Ownership(setup.incarnation, is_heard)

    def heard(self, rank: int, report: RankReport) -> None:
        """What the agent of `rank` reports."""
        coordinator = self._coordinator
        if isinstance(report, RankJoined):
            self._joined(rank)
        elif isinstance(report, RankDone):
            self.attendance.done(rank)
            self._obey(coordinator.done(rank, "its trainer is gone"))
        elif isinstance(report, RankCaptured):
            self._obey(
                coordinator.captured(
                    rank, report.key, adopted=report.adopted, memory=report.memory, held=report.replicas
                )
            )
        elif isinstance(report, RankTensors):
            self._obey(coordinator.which(rank, report.key, report.tensors or None))
        elif isinstance(report, RankSealed):
            self._obey(coordinator.sealed(rank, report.key))
        elif isinstance(report, RankSkipped):
            self._obey(coordinator.skipped(rank, report.key, report.why))
        elif isinstance(report, RankPersisted):
            self._take(self._texts.heard(rank, report.key, report.report))
        elif isinstance(report, RankText):
            self._take(self._texts.told(rank, report.key, report.digest, report.text))
        elif isinstance(report, RankLocal):
            self._obey(coordinator.local(rank, report.key, report.there))
        elif isinstance(report, RankFailed):
            self._suspect(report.key)
            self._obey(coordinator.failed(rank, report.key, report.why, full=report.full))
        elif isinstance(report, RankHurried):
            self._obey(coordinator.hurry())
        else:
            never(report)

    def lost(self, rank: int) -> None:
        """The agent of `rank` is gone."""
        self._take(self._texts.gone(rank))
        if not self.attendance.leaves(rank):
            self._obey(self._coordinator.lost(rank))

    def _joined(self, rank: int) -> None:
        """An agent that was lost, or the next one of its rank, reports what it holds by itself; so do all others when
        this agent has missed something."""
        self._take(self._texts.gone(rank))
        if self.attendance.returns(rank):
            self._coordinator.renew(rank)
            self._pass_on(Order(OrderKind.AGAIN, None))

    def look_round(self) -> None:
        """Give up those that have been away for too long."""
        for rank in self.attendance.give_up():
            self._obey(self._coordinator.lost(rank))

    def _take(self, heard: Heard) -> None:
        """Reports that are whole now, and what is to be asked."""
        for rank, key, found in heard.reports:
            self._obey(self._coordinator.persisted(rank, key, found))
        for rank, key, why in heard.failed:
            self._obey(self._coordinator.failed(rank, key, why))
        for rank, key, wanted in heard.asks:
            order = Order(OrderKind.TELL, key, wanted, (rank,))
            if rank == 0:
                self._deliver(order)
            else:
                self.hub.tell(rank, order.to_json())

    def on_result(self, result: LeaderResult) -> None:
        """What a job for all ranks gave."""
        if isinstance(result, LookResult):
            self.looked(result.key, result.found, result.why)
        elif isinstance(result, CommitResult):
            self.committed(result)
        elif isinstance(result, RetentionResult):
            self.upkeep.kept(result)
        elif isinstance(result, ClearResult):
            self._cleared(result)
        elif isinstance(result, TakenResult):
            if result.found:
                self._is_taken(result.found)
        elif isinstance(result, LossNoteResult):
            self.counted.said(result.why)
        else:
            never(result)

    def looked(self, key: Key, attempt: Optional[str], why: str) -> None:
        """Storage has that capture as `attempt`, or not, or could not be asked."""
        capture = self._captures.get(key)
        if capture is not None and attempt:
            capture.attempt = attempt
        if why:
            # It may be there or not; a second copy does no harm, none at all would.
            print(f"capture {key}: {why}", file=sys.stderr, flush=True)
        self._obey(self._coordinator.looked(key, bool(attempt)))

    def committed(self, result: CommitResult) -> None:
        """The manifest is written, or not."""
        key, found, why, number = result
        capture = self._captures.get(key)
        if capture is not None:
            capture.jobs.discard("commit")
        if found is None:
            self._suspect(key)
            self._obey(self._coordinator.failed(0, key, why, full=number in NO_ROOM))
        elif found.taken:
            self._is_taken(found.taken)
            self._obey(self._coordinator.failed(0, key, found.taken))
        else:
            self._obey(self._coordinator.committed(key))
            self.upkeep.after_commit(key)

    def _suspect(self, key: Key) -> None:
        """A save failed: a newer start may have the root, and have deleted what was being written."""
        if self._ownership.covers(key) and not self._ownership.taken:
            self.worker.submit(TakenResult, key, self._storage.taken(key[0]))

    def _is_taken(self, by: str) -> None:
        """From now on nothing of this start is committed, and all trainers hear why."""
        if not self._ownership.taken:
            self._ownership.taken = by
            print(by, file=sys.stderr, flush=True)
            self._pass_on(Order(OrderKind.TAKEN, None, by))

    def _cleared(self, result: ClearResult) -> None:
        """Something was given up for a save that had no room, or nothing could be."""
        why = self.upkeep.cleared(result)
        self._obey(self._coordinator.cleared(result.key, freed=not why, why=why))

    def _obey(self, orders: List[Order]) -> None:
        for order in orders:
            capture = self._captures.get(order.key) if order.key else None
            if order.kind is OrderKind.LOOK and capture is not None:
                self.worker.submit(LookResult, capture.key, self._storage.look(capture))
            elif order.kind is OrderKind.COMMIT and capture is not None and self._ownership.taken:
                self._obey(self._coordinator.failed(0, capture.key, self._ownership.taken))
            elif order.kind is OrderKind.COMMIT and capture is not None:
                capture.jobs.add("commit")
                reports: Dict[int, ShardReport] = dict(self._coordinator.reports(capture.key))
                job = self._storage.commit(capture, reports, own=self._ownership.covers(capture.key))
                self.worker.submit(CommitResult, capture.key, job)
            elif order.kind is OrderKind.CLEAR and capture is not None:
                self.upkeep.clear(capture)
            else:
                if order.kind is OrderKind.COMMITTED and capture is not None:
                    order = order._replace(note=capture.attempt)
                if order.kind in _CAME_TO_NOTHING and capture is not None:
                    self.upkeep.came_to_nothing(capture.attempt)
                self.counted.ended(order)
                self._pass_on(order)

    def _pass_on(self, order: Order) -> None:
        self.hub.broadcast(order.to_json())
        self._deliver(order)
