"""Rank 0's agent among those of a simulated fleet: hub, coordinator, assembly and commit are the product's.

    python lab/programs/fleets/agents.py WORLD ROOT                      (started by lab/programs/fleets)

The others are one process (peers.py) that speaks to it over loopback. Shards are not written; everything else of a
commit is, so that ROOT can be planned from afterwards.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, Set

import model
from meter import Meter, memory_mb

from hyperpod_kit import descriptors
from hyperpod_kit.checkpoint.agent.leader.failure_counter import FailureCounter
from hyperpod_kit.checkpoint.agent.leader.leader import Leader
from hyperpod_kit.checkpoint.agent.process import agent_events
from hyperpod_kit.checkpoint.agent.process.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.process.worker import Worker
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import (
    Order,
    OrderKind,
    RankCaptured,
    RankDone,
    RankPersisted,
    RankSealed,
    parse_rank_report_if_known,
)
from hyperpod_kit.checkpoint.agent.reports.report_texts import ReportEncoder
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.wire import rpc
from hyperpod_kit.checkpoint.repository.records import identity

TOKEN = "a token of the simulation"


class HeldCapture:
    """What a leader asks of its own rank's capture."""

    def __init__(self, key: Key) -> None:
        self.key, self.slot, self.shard, self.part = key, None, None, None
        self.jobs: Set[str] = set()
        self.checkpoint_id = f"seq-{key[1]:06d}.step-{10 * key[1]:010d}.e{key[0]}-{key[2]}"


class HeldCaptures:
    """Rank 0 has every capture."""

    def __init__(self) -> None:
        self._captures: Dict[Key, HeldCapture] = {}

    def get(self, key: Key) -> HeldCapture:
        return self._captures.setdefault(key, HeldCapture(key))


class Rank0:
    """The agent's main loop, less what is of its own rank."""

    def __init__(self, world: int, root: str) -> None:
        self.world, self.root = world, root
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.whose = identity.ensure_run_identity(root, "fleet")
        storage = Storage(
            root,
            run_identity=self.whose,
            directory=None,
            rank=0,
            versions={},
            rate_limit=None,
            keep=None,
            stopped=lambda: False,
        )
        hub = rpc.Hub(TOKEN, self._queue_message, peers=world - 1, addresses=["127.0.0.1"])
        self.hub = hub
        chores = Worker("chores", self.events.put)
        counted = FailureCounter(
            tempfile.mkdtemp(dir=os.path.dirname(root)), root, self.whose, model.INCARNATION, storage, chores
        )
        self.ends: Set[OrderKind] = set()
        captures: Any = HeldCaptures()
        setup: Any = SimpleNamespace(world=world, incarnation=model.INCARNATION)
        self.leader = Leader(
            setup,
            hub,
            captures,
            storage,
            self.events.put,
            self._record_order,
            lambda event: None,
            counted,
            is_trainer_alive=lambda: True,
        )

    def _queue_message(self, rank: int, message: Any) -> None:
        if message is None:
            self.events.put(agent_events.RankDisconnected(rank))
            return
        report = parse_rank_report_if_known(message)
        if report is not None:
            self.events.put(agent_events.FromRank(rank, report))

    def _record_order(self, order: Order) -> None:
        if order.kind in (OrderKind.FAILED, OrderKind.DROPPED) and order.key != model.capture_key(3):
            print(f"a save came to nothing: {order.note}", file=sys.stderr, flush=True)
            os._exit(1)
        self.ends.add(order.kind)

    def run_until_response(self) -> Dict[str, int]:
        """Process events until the peers' response arrives, and return the response."""
        while True:
            event = self.events.get()
            if isinstance(event, dict):
                return event
            if isinstance(event, agent_events.FromRank):
                self.leader.on_report(event.rank, event.report)
            elif isinstance(event, agent_events.RankDisconnected):
                self.leader.on_disconnected(event.rank)
            else:
                self.leader.on_result(event)


class Peers:
    """The process of all others."""

    def __init__(self, rank0: Rank0) -> None:
        arguments = [str(rank0.hub.port), TOKEN, str(rank0.world), rank0.whose.run_id, rank0.root]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("peers.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._forward_responses, args=(rank0.events,), daemon=True).start()

    def _forward_responses(self, events: queue.SimpleQueue[Any]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            events.put(json.loads(line))
        if self._process.wait() != 0:
            print("the peers have ended", file=sys.stderr, flush=True)
            os._exit(1)

    def send_command(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main(world: int, root: str) -> None:
    descriptors.raise_soft_limit_to_hard()
    meter = Meter()
    base = memory_mb("VmRSS")
    rank0 = Rank0(world, root)
    peers = Peers(rank0)
    on_report = rank0.leader.on_report
    encoder = ReportEncoder(inline_texts=True)

    def phase(name: str, command: str, first: Callable[[], None] = lambda: None) -> None:
        with meter.measure_phase(name) as row:
            peers.send_command(command)
            first()
            response = rank0.run_until_response()
            row["bytes_in"], row["bytes_out"] = response["sent"], response["received"]

    phase("start", "join")
    for seq, kind in ((1, "new layout"), (2, "same layout")):
        key = model.capture_key(seq)
        report = model.shard_report(0, world, seq, rank0.whose.run_id, root)
        done = RankPersisted(key, encoder.encode(report))
        phase(f"captured, {kind}", f"captured {seq}", partial(on_report, 0, RankCaptured(key, False, None)))
        phase(f"sealed, {kind}", f"sealed {seq}", partial(on_report, 0, RankSealed(key)))
        phase(f"commit, {kind}", f"persisted {seq}", partial(on_report, 0, done))
    files = Path(root) / HeldCapture(model.capture_key(1)).checkpoint_id
    meter.rows["files"] = {path.name: path.stat().st_size for path in sorted(files.iterdir())}
    print(json.dumps({"files": meter.rows["files"]}), flush=True)
    on_report(0, RankCaptured(model.capture_key(3), False, None))
    phase("captured before a death", "captured 3")
    rank0.leader.membership.hurried = True  # as an agent's is whose trainer was ended for the lost node's sake
    phase("death of a node", "death 3")
    on_report(0, RankDone())
    phase("end", "end")
    meter.rows["before"] = {"rss_mb": base}
    meter.record_peak_memory()
    peers.close()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
