"""What only rank 0's agent does: hear all ranks, decide (see coordinator), look, commit, pass the orders on."""

from __future__ import annotations

import sys
from typing import Callable, Dict, List, Optional, Set

from hyperpod_kit.checkpoint.agent import rpc
from hyperpod_kit.checkpoint.agent.agent_captures import Captures
from hyperpod_kit.checkpoint.agent.agent_events import (
    CommitResult,
    LeaderResult,
    LookResult,
    LossNoteResult,
    RetentionResult,
)
from hyperpod_kit.checkpoint.agent.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.attendance import Attendance
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.coordinator import Coordinator
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
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent, AgentTrouble
from hyperpod_kit.checkpoint.agent.report_texts import Heard, Texts
from hyperpod_kit.checkpoint.agent.saves_counted import Counted
from hyperpod_kit.checkpoint.agent.shard_report import ShardReport
from hyperpod_kit.checkpoint.agent.worker import Post, Worker
from hyperpod_kit.checkpoint.repository import retention

_CAME_TO_NOTHING = (OrderKind.DROPPED, OrderKind.FAILED, OrderKind.OVERTAKEN, OrderKind.REFUSED)


class Leader:
    """The coordinator with its effects. Used from the agent's main thread; `deliver` hands an order to this rank, and
    `tell` an event to its trainer."""

    def __init__(
        self,
        world: int,
        hub: rpc.Hub,
        captures: Captures,
        storage: Storage,
        post: Post,
        deliver: Callable[[Order], None],
        tell: Callable[[AgentEvent], None],
        counted: Counted,
    ) -> None:
        self.hub = hub
        self._coordinator = Coordinator(world, local=storage.local is not None)
        self._texts = Texts()
        self._captures = captures
        self._storage = storage
        self._deliver, self._tell = deliver, tell
        self.worker = Worker("commit", post)
        self.keeper = Worker("keep", post)
        """Has one job at a time: what was committed meanwhile is seen by the next one."""
        self.counted = counted
        self._told: Set[str] = set()
        self.attendance = Attendance()
        self._kept_up = True
        self.keeping = False
        """Behind a commit there is still to be cleaned up."""
        self._abandoned: Set[str] = set()
        """Attempts of this start whose saves came to nothing, and which may still lie there."""

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
            self._obey(coordinator.failed(rank, report.key, report.why))
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
            self.looked(*result)
        elif isinstance(result, CommitResult):
            self.committed(*result)
        elif isinstance(result, RetentionResult):
            self.kept(result.key, result.found, result.why)
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

    def committed(self, key: Key, attempt: Optional[str], why: str) -> None:
        """The manifest is written, or not."""
        capture = self._captures.get(key)
        if capture is not None:
            capture.jobs.discard("commit")
        self._obey(self._coordinator.committed(key) if attempt else self._coordinator.failed(0, key, why))
        if attempt:
            self._keep_up(key)

    def _keep_up(self, key: Key) -> None:
        """Clean up behind the commit of `key`, when what is being cleaned up is."""
        self._kept_up = False
        if not self.keeping:
            self.keeping, self._kept_up = True, True
            self.keeper.submit(RetentionResult, key, self._storage.keep_up(frozenset(self._abandoned)))

    def kept(self, key: Key, done: Optional[retention.Applied], why: str) -> None:
        """Storage is as the policy wants it, but for what is left; each reason is said once."""
        self.keeping = False
        left: List[str] = []
        if done is not None:
            self._abandoned.difference_update(done.deleted)
            left = [f"{attempt}: {reason}" for attempt, reason in done.left]
            for attempt, reason in done.damaged:
                self._warn(f"checkpoint {attempt} was read back and is not what was committed: {reason}")
        for problem in [*left, *([why] if why else ())]:
            if problem not in self._told and len(self._told) < 100:
                self._told.add(problem)
                print(f"old checkpoints stay: {problem}", file=sys.stderr, flush=True)
        if not self._kept_up:
            self._keep_up(key)

    def _warn(self, text: str) -> None:
        """Once, in the log and to this rank's trainer."""
        if text not in self._told and len(self._told) < 100:
            self._told.add(text)
            print(text, file=sys.stderr, flush=True)
            self._tell(AgentTrouble(f"{text}; an older one that is whole stays"))

    def _obey(self, orders: List[Order]) -> None:
        for order in orders:
            capture = self._captures.get(order.key) if order.key else None
            if order.kind is OrderKind.LOOK and capture is not None:
                self.worker.submit(LookResult, capture.key, self._storage.look(capture))
            elif order.kind is OrderKind.COMMIT and capture is not None:
                capture.jobs.add("commit")
                reports: Dict[int, ShardReport] = dict(self._coordinator.reports(capture.key))
                self.worker.submit(CommitResult, capture.key, self._storage.commit(capture, reports))
            else:
                if order.kind is OrderKind.COMMITTED and capture is not None:
                    order = order._replace(note=capture.attempt)
                if order.kind in _CAME_TO_NOTHING and capture is not None:
                    self._abandoned.add(capture.attempt)
                self.counted.ended(order)
                self._pass_on(order)

    def _pass_on(self, order: Order) -> None:
        self.hub.broadcast(order.to_json())
        self._deliver(order)
