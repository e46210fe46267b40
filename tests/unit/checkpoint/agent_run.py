"""Real agents, and in the trainer's place a process that only lives and dies; the test speaks for it."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import Close, Connect, RestoreCompleted, SlotCaptured
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent_client.agent_supervisor import AgentLink
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.system import process
from tests.support.wait import Deadline, until

CHUNK = 4096
"""Small chunks, so that a small shard has several leaves."""


class Trainer:
    """A process with a pid and a start time, that SIGKILL ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
        owner = process.identify_unless_gone_or_zombie(self._process.pid)
        assert owner is not None
        self.owner = owner

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdin is not None
        self._process.stdin.close()


def heard_link(setup: Any, on_event: Any) -> AgentLink:
    link = AgentLink(setup, on_event)
    link.listen()  # as AgentSupervisor does
    return link


class Start:
    """One start of a run: a trainer and an agent per rank, all on this node."""

    def __init__(
        self,
        root: str,
        shm: Path,
        *,
        world: int = 1,
        make: Any = heard_link,
        env: Optional[Dict[str, str]] = None,
        rank_env: Optional[Dict[int, Dict[str, str]]] = None,
        **setup: Any,
    ) -> None:
        self.root, self.shm, self.world = root, shm, world
        self.identity = identity.ensure_run_identity(root)
        self.incarnation = secrets.token_hex(3)
        self.trainers = [Trainer() for _ in range(world)]
        self.links: List[AgentLink] = []
        self.events: List[queue.Queue[Dict[str, Any]]] = [queue.Queue() for _ in range(world)]
        port = 0
        for rank in range(world):
            with _environment({**(env or {}), **(rank_env or {}).get(rank, {})}):
                link = make(
                    {
                        "root": root,
                        "run": self.identity.run,
                        "run_id": self.identity.run_id,
                        "rank": rank,
                        "world": world,
                        "incarnation": self.incarnation,
                        "token": "t",
                        "owner": list(self.trainers[rank].owner),
                        "addresses": ["127.0.0.1"],
                        "local": None,
                        "versions": {},
                        **setup,
                    },
                    lambda event, rank=rank: self.events[rank].put(event.to_json()),
                )
            self.links.append(link)
        for link in self.links:
            port = link.wait_for_ready_port(20) or port
        for link in self.links:
            link.send(Connect([("127.0.0.1", port)]))

    def settle(self, keep: Optional[Key] = None, tier: str = "memory") -> None:
        for link in self.links:
            link.send(RestoreCompleted(keep, tier))

    def captured(self, rank: int, slot: shm_slots.Slot) -> None:
        self.links[rank].send(SlotCaptured(slot.name.slot))

    def until(self, *kinds: str, rank: int = 0, timeout: float = 15.0) -> List[Dict[str, Any]]:
        """The rank's events up to the first of one of `kinds`. Raises queue.Empty, and AssertionError where the agent
        says nothing in time but that it is alive."""
        found: List[Dict[str, Any]] = []
        deadline = Deadline(timeout)
        while not found or found[-1]["ev"] not in kinds:
            event = self.events[rank].get(timeout=timeout)
            if event["ev"] == "alive":
                assert not deadline.has_passed(), f"none of {kinds} within {timeout:g} s after {found}"
                continue
            found.append(event)
            deadline = Deadline(timeout)
        return found

    def kill_trainers(self) -> None:
        """SIGKILL to all of them, and what the kernel does then: their ends of the sockets close."""
        for trainer, link in zip(self.trainers, self.links):
            trainer.kill()
            link._channel.close()

    def kill_agents(self) -> None:
        for link in self.links:
            link = getattr(link, "_link", link)
            with contextlib.suppress(ProcessLookupError):
                os.kill(link.pid, signal.SIGKILL)
            link._process.wait(10)

    def close(self) -> bool:
        """A normal end."""
        for link in self.links:
            link.send(Close())
        return all([link.wait_exit(20) for link in self.links])

    def destroy(self) -> None:
        for link in self.links:
            link.detach()
        for trainer in self.trainers:
            trainer.kill()
        self.kill_agents()


@contextlib.contextmanager
def _environment(more: Dict[str, str]) -> Any:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def abandon(manager: Any) -> None:
    """As if this trainer had died: its agent is killed for good, its slots stay, and it makes no further ones."""
    manager._staging._pool.join()
    manager._agent.tries = 0
    os.kill(manager._agent.pid, signal.SIGKILL)
    manager._agent.wait_exit(5)
    until(lambda: not manager.protects)


def states(shm: Path) -> List[str]:
    """The states of all slots."""
    found = []
    for slot in shm_slots.attach_each_mappable(str(shm), shm_slots.own_slot_names(str(shm))):
        found.append(slot.page.state if slot.page is not None else "damaged")
        slot.close()
    return sorted(found)


def save(
    run: Start, capture: Callable[..., shm_slots.Slot], seq: int, *, slot: int = 0, tell: bool = True
) -> shm_slots.Slot:
    """All ranks capture `seq`; rank 0's slot."""
    made = [
        capture(
            rank=rank,
            world=run.world,
            seq=seq,
            step=10 * seq,
            slot=slot,
            incarnation=run.incarnation,
            owner=tuple(run.trainers[rank].owner),
            chunk=CHUNK,
        )
        for rank in range(run.world)
    ]
    for rank, one in enumerate(made):
        if tell:
            run.captured(rank, one)
    return made[0]
