"""What only rank 0's agent does: hear all ranks, decide (see coordinator), look, commit, pass the orders on."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Callable, Dict, List, Optional, Set, Tuple

from hyperpod_kit.checkpoint.repository import coordinator, fabric
from hyperpod_kit.checkpoint.repository.agent_captures import Captures
from hyperpod_kit.checkpoint.repository.agent_storage import Storage
from hyperpod_kit.checkpoint.repository.agent_work import Post, Worker
from hyperpod_kit.checkpoint.repository.assemble import Report
from hyperpod_kit.checkpoint.repository.control import Key
from hyperpod_kit.checkpoint.repository.coordinator import Coordinator, Order
from hyperpod_kit.checkpoint.repository.lines import Message
from hyperpod_kit.checkpoint.repository.saves_counted import Counted
from hyperpod_kit.checkpoint.repository.shard import Placed


class Head:
    """The coordinator with its effects. Used from the agent's main thread; `deliver` hands an order to this rank."""

    def __init__(
        self,
        world: int,
        hub: fabric.Hub,
        captures: Captures,
        storage: Storage,
        post: Post,
        deliver: Callable[[Message], None],
        chores: Worker,
        counted: Counted,
    ) -> None:
        self.hub = hub
        self._brain = Coordinator(world, local=storage.local is not None)
        self._pieces: Dict[int, Tuple[str, Tuple[Placed, ...]]] = {}
        self._captures = captures
        self._storage = storage
        self._deliver = deliver
        self.worker = Worker("commit", post)
        self._chores = chores
        self.counted = counted
        self._told: Set[str] = set()
        self._away: Dict[int, float] = {}
        self._ended: Set[int] = set()
        self._given_up: Set[int] = set()
        self.hurried = False
        """Nobody trains here any more: no agent is waited for."""
        self.keeping = 0
        """Commits behind which there is still to be cleaned up."""

    def peer(self, rank: int, message: Optional[Message]) -> None:
        """A report of a rank; None: its agent is gone."""
        if message is None:
            self._lost(rank)
            return
        op = message["op"]
        if op == "joined":
            self._joined(rank)
            return
        if op == "done":
            self._ended.add(rank)
            self._obey(self._brain.done(rank, "its trainer is gone"))
            return
        epoch, seq, incarnation = message["key"]
        key = (int(epoch), int(seq), str(incarnation))
        if op == "captured":
            self._obey(
                self._brain.captured(rank, key, adopted=bool(message.get("adopted")), held=message.get("replicas"))
            )
        elif op == "which":
            tensors = message.get("tensors")
            self._obey(
                self._brain.which(
                    rank,
                    key,
                    [(str(name), str(layout), str(value)) for name, layout, value in tensors] if tensors else None,
                )
            )
        elif op == "sealed":
            self._obey(self._brain.sealed(rank, key))
        elif op == "skipped":
            self._obey(self._brain.skipped(rank, key, message["why"]))
        elif op == "persisted":
            self._obey(self._brain.persisted(rank, key, self._whole(rank, Report.from_json(message["report"]))))
        elif op == "local":
            self._obey(self._brain.local(rank, key, bool(message["there"])))
        elif op == "failed":
            self._obey(self._brain.failed(rank, key, message["why"]))

    def _lost(self, rank: int) -> None:
        """Its trainer starts another agent, unless it has ended itself."""
        if self.hurried or rank in self._ended:
            self._obey(self._brain.lost(rank))
        else:
            self._away[rank] = time.monotonic() + fabric.REJOIN

    def _joined(self, rank: int) -> None:
        """An agent that was lost, or the next one of its rank, reports what it holds by itself; so do all others when
        this agent has missed something."""
        self._pieces.pop(rank, None)
        if self._away.pop(rank, None) is not None or rank in self._given_up:
            self._given_up.discard(rank)
            self._brain.renew(rank)
            again: Message = {"op": coordinator.AGAIN, "key": [], "note": ""}
            self.hub.broadcast(again)
            self._deliver(again)

    def look_round(self) -> None:
        """Give up those that have been away for too long."""
        now = time.monotonic()
        for rank in [rank for rank, until in self._away.items() if self.hurried or now > until]:
            del self._away[rank]
            self._given_up.add(rank)
            self._obey(self._brain.lost(rank))

    def _whole(self, rank: int, report: Report) -> Report:
        """With the pieces, which a rank says only when they have changed."""
        if report.pieces or report.page.layout != self._pieces.get(rank, ("", ()))[0]:
            self._pieces[rank] = (report.page.layout, report.pieces)
            return report
        return replace(report, pieces=self._pieces[rank][1])

    def looked(self, key: Key, attempt: Optional[str], why: str) -> None:
        """Storage has that capture as `attempt`, or not, or could not be asked."""
        held = self._captures.get(key)
        if held is not None and attempt:
            held.attempt = attempt
        if why:
            # It may be there or not; a second copy does no harm, none at all would.
            print(f"capture {key}: {why}", file=sys.stderr, flush=True)
        self._obey(self._brain.looked(key, bool(attempt)))

    def committed(self, key: Key, attempt: Optional[str], why: str) -> None:
        """The manifest is written, or not."""
        held = self._captures.get(key)
        if held is not None:
            held.jobs.discard("commit")
        self._obey(self._brain.committed(key) if attempt else self._brain.failed(0, key, why))
        if attempt:
            self.keeping += 1
            self._chores.submit("kept", key, self._storage.keep_up())

    def kept(self, left: Optional[List[str]], why: str) -> None:
        """Storage is as the policy wants it, but for what is left; each reason is said once."""
        self.keeping -= 1
        for problem in [*(left or ()), *([why] if why else ())]:
            if problem not in self._told and len(self._told) < 100:
                self._told.add(problem)
                print(f"old checkpoints stay: {problem}", file=sys.stderr, flush=True)

    def _obey(self, orders: List[Order]) -> None:
        for order in orders:
            held = self._captures.get(order.key) if order.key else None
            if order.kind == coordinator.LOOK and held is not None:
                self.worker.submit("looked", held.key, self._storage.look(held))
            elif order.kind == coordinator.COMMIT and held is not None:
                held.jobs.add("commit")
                reports: Dict[int, Report] = dict(self._brain.reports(held.key))
                self.worker.submit("committed", held.key, self._storage.commit(held, reports))
            else:
                note = held.attempt if held is not None and order.kind == coordinator.COMMITTED else order.why
                self.counted.ended(order.kind, order.key, note)
                message: Message = {
                    "op": order.kind,
                    "key": list(order.key or ()),
                    "note": note,
                    **({"ranks": list(order.ranks)} if order.ranks else {}),
                }
                self.hub.broadcast(message)
                self._deliver(message)
