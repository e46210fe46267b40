"""Agents and trainers of one node as objects that move when told to: real logic, no process, no thread, no clock.

What is replaced: sockets (by the queues that they end in), worker threads (a job runs when it is told to), the test
whether a process lives. Shared memory and storage are real files.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections import deque
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple
from unittest import mock

from hyperpod_kit.checkpoint.agent import agent
from hyperpod_kit.checkpoint.agent.leader import leader
from hyperpod_kit.checkpoint.agent.process import agent_events, snapshot_registry
from hyperpod_kit.checkpoint.agent.process import worker as agent_worker
from hyperpod_kit.checkpoint.agent.protocol.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import (
    RestoreCompleted,
    SaveSkipped,
    SlotCaptured,
    TensorDigests,
    TrainerMessage,
)
from hyperpod_kit.checkpoint.agent.reports import replicas
from hyperpod_kit.checkpoint.agent.shm import control_page, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES, Key, SlotState
from hyperpod_kit.checkpoint.agent.wire import rpc
from hyperpod_kit.checkpoint.repository import commit, selection
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec, lay_out
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog, identity
from hyperpod_kit.errors import CheckpointError, NoCheckpoint
from hyperpod_kit.system.process import Process

SLOTS = 2
ITEMS = 700


class Worker:
    """agent_worker.Worker, a job at a time when `work` is called."""

    def __init__(self, name: str, post: agent_worker.Post) -> None:
        self.name = name
        self.post = post
        self.jobs: deque[Tuple[agent_worker.Result[Any], Key, Callable[[], Any]]] = deque()

    def submit(self, result: agent_worker.Result[Any], key: Key, job: Callable[[], Any]) -> None:
        self.jobs.append((result, key, job))

    def work(self, error: Optional[str] = None) -> None:
        """Do the next job; with `error`, it fails instead."""
        result, key, job = self.jobs.popleft()
        if error is not None:
            self.post(result(key, None, error, 0))
            return
        try:
            self.post(result(key, job(), "", 0))
        except (CheckpointError, OSError) as err:
            self.post(result(key, None, verify.describe_failure(err), getattr(err, "errno", None) or 0))


class Pipe:
    """What an agent says to one side."""

    def __init__(self, receive: Callable[[Dict[str, Any]], Optional[bool]]) -> None:
        self._receive = receive

    def send(self, message: Dict[str, Any]) -> bool:
        return self._receive(json.loads(json.dumps(message))) is not False

    def set_dead_peer_timeout(self, seconds: int) -> None:
        """A broken pipe is noticed at once."""


def peers_of(first: leader.Leader) -> Dict[int, agent.Agent]:
    hub: Any = first.hub  # a Hub of this module
    peers: Dict[int, agent.Agent] = hub.peers
    return peers


class Hub:
    """rpc.Hub without sockets."""

    port = 1

    def __init__(self) -> None:
        self.peers: Dict[int, agent.Agent] = {}

    def set_dead_peer_timeout(self, seconds: int) -> None:
        """As above."""

    def broadcast(self, message: Dict[str, Any]) -> None:
        for peer in self.peers.values():
            peer.link.post_order(json.loads(json.dumps(message)))

    def send_to(self, rank: int, message: Dict[str, Any]) -> None:
        if rank in self.peers:
            self.peers[rank].link.post_order(json.loads(json.dumps(message)))


class World:
    """`world` ranks on one node. Everything that `told` says was said by an agent to its trainer."""

    def __init__(self, folder: Path, world: int) -> None:
        self.shm = folder / "shm"
        self.root = str(folder / "root")
        self.shm.mkdir()
        self.world = world
        self.identity = identity.ensure_run_identity(self.root)
        self.agents: Dict[int, agent.Agent] = {}
        self.told: List[Tuple[str, Key]] = []
        self.alive: Set[Process] = set()
        self.trainers = False
        self.epoch = self.seq_before = 0
        self.captured: Dict[int, int] = {}
        self.half: Dict[int, shm_slots.Slot] = {}
        self.apart: Dict[Tuple[int, int], bool] = {}
        """Saves in which the ranks hold other bytes of what they hold alike, as (epoch, seq)."""
        self._starts = 0
        self._patches = contextlib.ExitStack()
        for target, name, value in (
            (agent_worker, "Worker", Worker),
            (leader, "Worker", Worker),
            (leader, "Worker", Worker),
            (agent, "is_alive", lambda owner: owner in self.alive),
            (snapshot_registry, "is_alive", lambda owner: owner in self.alive),
            (rpc, "Hub", lambda *_, **__: Hub()),
            (rpc, "REJOIN", -1.0),
        ):
            self._patches.enter_context(mock.patch.object(target, name, value))
        self._patches.enter_context(mock.patch.dict(os.environ, {"HPK_SHM_DIR": str(self.shm)}))

    def end(self) -> None:
        for rank in list(self.agents):
            self.kill_agent(rank)
        self._patches.close()

    # --- starts and deaths ------------------------------------------------------------------------------------------

    def start(self) -> Optional[Key]:
        """A new start: agents, restore, settle. The key that it restored, None for a start from scratch."""
        for rank in list(self.agents):
            self.kill_agent(rank)  # a new start ends a dead trainer's agent: SIGUSR2, leave everything as it is
        self._starts += 1
        self.incarnation = f"{self._starts:06x}"
        self.owner = Process(10_000_000 + self._starts, 1)
        self.alive = {self.owner}
        self.trainers = True
        self.half.clear()
        for rank in range(self.world):
            self.agents[rank] = self._make_agent(rank)
        first = self.agents[0].link.leader
        assert first is not None
        for rank in range(1, self.world):
            peers_of(first)[rank] = self.agents[rank]
            self.agents[rank].link.uplink = Pipe(  # type: ignore[assignment]
                lambda message, rank=rank: (
                    self.agents[0]._queue_rank_report(rank, message) if 0 in self.agents else None
                )  # type: ignore[misc]
            )
        in_memory = self.in_memory()
        seqs = [key[1] for key in in_memory] + [entry.name.seq for entry in catalog.list_checkpoints(self.root)]
        above = max([key[0] for key in in_memory], default=0)
        self.epoch = commit.claim_epoch(self.root, self.identity, above=above, job={})
        self.captured = dict.fromkeys(range(self.world), max(seqs, default=0))
        found = self.newest()
        for rank in range(self.world):
            self._say(rank, RestoreCompleted(found if found in in_memory else None, "memory"))
        return found

    def _make_agent(self, rank: int) -> agent.Agent:
        setup = {
            "root": self.root,
            "run": self.identity.run,
            "run_id": self.identity.run_id,
            "rank": rank,
            "world": self.world,
            "incarnation": self.incarnation,
            "token": "t",
            "owner": list(self.owner),
            "addresses": ["127.0.0.1"],
        }
        made = agent.Agent(Pipe(lambda message: self._hear(rank, message)), AgentSetup.from_json(setup))  # type: ignore[arg-type]
        made.registry.seal_or_free_leftover_slots()
        return made

    def _hear(self, rank: int, message: Dict[str, Any]) -> bool:
        """What a trainer is told; False when it is dead."""
        if message["ev"] == "which":
            if self.trainers:
                self._say(rank, TensorDigests(tuple(message["key"]), [("w", "F32 [1]", str(rank))]))
            return self.trainers
        if "key" in message and self.trainers:
            epoch, seq, incarnation = message["key"]
            self.told.append((message["ev"], (epoch, seq, incarnation)))
        return True

    def kill_trainers(self) -> None:
        """SIGKILL for the job's step: their agents hear it."""
        self.trainers = False
        self.alive.clear()
        self.half.clear()
        for held in self.agents.values():
            held.events.put(agent_events.TrainerDisconnected())

    def kill_agent(self, rank: int) -> None:
        """SIGKILL: the kernel drops the lock and closes the connections."""
        dead = self.agents.pop(rank)
        os.close(dead.lock._fd)
        if rank == 0:
            for peer in self.agents.values():
                peer.events.put(agent_events.LeaderDisconnected())
        elif 0 in self.agents:
            first = self.agents[0].link.leader
            assert first is not None
            peers_of(first).pop(rank, None)
            self.agents[0]._queue_rank_report(rank, None)

    def wipe(self) -> None:
        """The node is gone, and all that it had in memory."""
        self.trainers = False
        for rank in list(self.agents):
            self.kill_agent(rank)
        for path in self.shm.iterdir():
            path.unlink()

    # --- a rank's trainer -------------------------------------------------------------------------------------------

    def begin_save(self, rank: int, apart: bool = False) -> None:
        """FREE -> WRITING with half of the bytes, or a skipped save when no slot is free."""
        self.captured[rank] += 1
        seq = self.captured[rank]
        self.apart.setdefault((self.epoch, seq), apart and self.world > 1)
        for number in range(SLOTS):
            name = shm_slots.SlotName(os.getuid(), shm_slots.run_hash(self.identity.run_id), rank, number)
            layout = self._layout(rank)
            try:
                slot = shm_slots.attach(str(self.shm), name)
            except FileNotFoundError:
                slot = shm_slots.create(str(self.shm), name, layout.size)
            page = slot.page
            assert page is not None
            if page.state == SlotState.FREE:
                self._half_copy(slot, layout, rank, seq)
                return
            slot.close()
        self._say(rank, SaveSkipped((self.epoch, seq, self.incarnation), "no slot was free"))

    def _half_copy(self, slot: shm_slots.Slot, layout: Any, rank: int, seq: int) -> None:
        told = f"of rank {rank}" if self.apart[self.epoch, seq] else "the same"
        extra = replicas.append_replica_digests(b'{"rng":0}', {"all": told})
        slot.write_page(
            control_page.Page(
                origin=control_page.CaptureOrigin(
                    rank=rank,
                    world=self.world,
                    incarnation=self.incarnation,
                    run=self.identity.run,
                    run_id=self.identity.run_id,
                    root=self.root,
                    owner=(self.owner.pid, self.owner.started),
                ),
                epoch=self.epoch,
                seq=seq,
                step=seq,
                shard=control_page.ShardFacts(
                    digest="blake2b",
                    chunk=digest.CHUNK,
                    size=layout.size,
                    layout=layout.fingerprint,
                    plan="blake2b:p",
                    tensors=1,
                    plan_tensors=self.world,
                    extra_size=len(extra),
                    extra_root=digest.small_object_digest(extra),
                ),
            ).transition(SlotState.WRITING)
        )
        slot.write_extra(extra)
        head = layout.header(self.epoch, seq, seq)
        slot.image[: len(head)] = head
        self._copy(slot, layout, (self.epoch, seq), rank, 0, 2)
        self.half[rank] = slot

    def finish_save(self, rank: int) -> None:
        """The other half, CAPTURED, and the agent is told."""
        slot, layout = self.half.pop(rank), self._layout(rank)
        page = slot.page
        assert page is not None
        self._copy(slot, layout, (page.epoch, page.seq), rank, 1, 2)
        slot.transition(SlotState.CAPTURED)
        number = slot.name.slot
        slot.close()
        self._say(rank, SlotCaptured(number))

    def _say(self, rank: int, message: TrainerMessage) -> None:
        if rank in self.agents:
            self.agents[rank]._queue_trainer_message(json.loads(json.dumps(message.to_json())))

    def _layout(self, rank: int) -> Any:
        return lay_out(
            [TensorSpec(f"w{rank}", "F32", (ITEMS + rank,))],
            rank=rank,
            world=self.world,
            run_id=self.identity.run,
            plan="blake2b:p",
            algorithm="blake2b",
        )

    def _data(self, position: Tuple[int, int], rank: int) -> bytes:
        return random.Random(f"{position}/{rank}").randbytes(4 * (ITEMS + rank))

    def _copy(
        self, slot: shm_slots.Slot, layout: Any, position: Tuple[int, int], rank: int, part: int, of: int
    ) -> None:
        data = self._data(position, rank)
        begin, end = len(data) * part // of, len(data) * (part + 1) // of
        at = layout.tensors[0].begin
        slot.image[at + begin : at + end] = data[begin:end]

    # --- steps ------------------------------------------------------------------------------------------------------

    def step(self, rank: int) -> None:
        """The agent takes one event from its queue."""
        mine = self.agents[rank]
        mine.handle(mine.events.get_nowait())
        if mine.link.leader is not None:
            mine.link.leader.expire_missing_ranks()
        if mine._is_ready_to_exit():
            mine._remove_own_slots_if_saved_and_unlock()
            del self.agents[rank]

    def workers(self) -> Iterator[Tuple[int, Worker]]:
        """Those that have something to do now: a writer waits for the sealer of the same capture."""
        for rank, mine in self.agents.items():
            leading = mine.link.leader
            commits = [leading.worker, leading.upkeep.worker] if leading is not None else []
            workers: Any = mine.workers
            sealer, writer, _, chores = workers
            for worker in (sealer, writer, chores, *commits):
                sealing = {key for _, key, _ in sealer.jobs}
                if worker.jobs and (worker is sealer or worker.jobs[0][1] not in sealing):
                    yield rank, worker

    # --- what is there ----------------------------------------------------------------------------------------------

    def in_memory(self) -> Set[Key]:
        """Captures that every rank has whole, and alike. CAPTURED counts: the next start seals it."""
        per_rank: List[Set[Key]] = []
        for rank in range(self.world):
            names = shm_slots.own_slot_names(str(self.shm), uid=os.getuid(), rank=rank)
            mine = set()
            for slot in shm_slots.attach_each_mappable(str(self.shm), names):
                page = slot.page
                if page is not None and page.state in COMPLETE_STATES:
                    self._check_bytes(bytes(slot.image), (page.epoch, page.seq), rank)
                    mine.add(page.key)
                slot.close()
            per_rank.append(mine)
        return {key for key in set.intersection(*per_rank) if not self.apart[key[:2]]}

    def newest(self) -> Optional[Key]:
        """What a start would restore now, its bytes checked."""
        found = max(self.in_memory(), default=None)
        try:
            stored = selection.newest_valid(self.root)
        except NoCheckpoint:
            return found
        for rank in range(self.world):
            path = Path(self.root, stored.checkpoint_id, f"shard-{rank:05d}.safetensors")
            self._check_bytes(path.read_bytes(), (stored.epoch, stored.seq), rank)
        assert not self.apart[stored.epoch, stored.seq], f"{stored.checkpoint_id} was committed though its ranks differ"
        return max(found, (stored.epoch, stored.seq, "")) if found else (stored.epoch, stored.seq, "")

    def _check_bytes(self, image: bytes, position: Tuple[int, int], rank: int) -> None:
        at, data = self._layout(rank).tensors[0].begin, self._data(position, rank)
        assert image[at : at + len(data)] == data, f"rank {rank} has other bytes than it saved as {position}"
