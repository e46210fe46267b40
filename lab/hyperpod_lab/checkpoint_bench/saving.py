"""Stall and persist, with the memory floor and the write limit measured between the saves."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.agent import shm_paths
from hyperpod_kit.storage.bench.replay.peers import Peers
from hyperpod_kit.storage.bench.replay.replaying import wait_durable
from hyperpod_kit.storage.bench.replay.workload import Workload
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.checkpoint_bench import limits, machine, usage
from hyperpod_lab.checkpoint_bench.timed_assignment import TimedAssignment


class Saving:
    """The samples of one rank; every time is the slowest rank's."""

    def __init__(
        self, peers: Peers, work: Workload, directory: Path, assignment: TimedAssignment, patience: machine.QuietWait
    ) -> None:
        self.peers, self.work, self.root, self.assignment = peers, work, directory / "root", assignment
        self.patience = patience
        self.directory = directory
        self.floor = limits.MemoryFloor(work.tensors, assignment.threads)
        self.state = State(work.model, work.optimizer)
        self._last: str | None = None
        self.samples: dict[str, Any] = {
            "bytes": int(peers.total(work.bytes)),
            "tensors": len(work.tensors),
            "stall": [],
            "persist": [],
            "disturbed": 0,
            "floor": {way: [] for way in self.floor.ways},
            "write": {str(n): [] for n in limits.WRITE_THREADS},
        }

    def run(self) -> dict[str, Any]:
        """All samples; the manager is closed and its memory free afterwards."""
        anonymous, opened = usage.private_bytes(os.getpid()), usage.descriptors(os.getpid())
        begin = time.perf_counter()
        manager = Manager(self.root)
        self.samples["start"] = self.peers.slowest(time.perf_counter() - begin)
        manager.restore(self.state)
        stall, persist = self.save(manager, 0)
        self.samples["first"] = {"stall": stall, "persist": persist}
        self._measure_usage(manager, anonymous, opened)
        while not self.assignment.enough(len(self.samples["stall"]), self.peers.slowest):
            number = len(self.samples["stall"])
            self.measure_floor()
            stall, persist = self.save(manager, number + 10)
            self.samples["stall"].append(stall)
            self.samples["persist"].append(persist)
            self._measure_write(number)
        if not manager.close():
            raise RuntimeError("the manager did not close cleanly")
        return self.samples

    def wait_until_quiet(self) -> None:
        """Wait for a quiet machine; a sample that begins on a busy one is counted as disturbed."""
        if self.peers.rank == 0:
            self.samples["disturbed"] += not self.patience.wait_until_quiet()
        self.peers.barrier()

    def measure_floor(self) -> None:
        """One sample of each way to copy; slow ways are not asked again."""
        for way in self.floor.ways:
            self.wait_until_quiet()
            self.work.change()
            self.peers.barrier()
            self.samples["floor"][way].append(self.peers.slowest(self.floor.seconds(way)))
        self.floor.ways = limits.ways_worth_measuring(self.samples["floor"])

    def save(self, manager: Manager, step: int) -> tuple[float, float]:
        """(stall, persist) of one save of a changed state."""
        self.wait_until_quiet()
        self.work.change()
        self.peers.barrier()
        begin = time.perf_counter()
        handle = manager.save(step, self.state)
        returned = time.perf_counter()
        wait_durable(handle)
        end = time.perf_counter()
        stall, persist = self.peers.slowest(returned - begin), self.peers.slowest(end - returned)
        self._remove_previous(handle.checkpoint_id)
        return stall, persist

    def _remove_previous(self, attempt: str | None) -> None:
        """Remove the checkpoint before this one, so that the disk holds two at most."""
        if self.peers.rank == 0 and self._last is not None:
            by_descriptor.remove_tree(self.root / self._last, ignore_errors=True)
        self._last = attempt
        self.peers.barrier()

    def _measure_write(self, number: int) -> None:
        for way in limits.ways_worth_measuring(self.samples["write"]):
            self.wait_until_quiet()
            name = f"limit-{self.peers.rank}-{number}"
            self.samples["write"][way].append(
                self.peers.slowest(
                    limits.write_seconds(self.floor.map, self.work.bytes, self.directory, name, int(way))
                )
            )
            self.peers.barrier()

    def _measure_usage(self, manager: Manager, anonymous: int, opened: int) -> None:
        """One more save, watched and not timed: what the engine needs beside its slots."""
        trainer_pid = os.getpid()
        agents = usage.find_agents()
        with usage.Watch([trainer_pid, *agents]) as watch:
            self.save(manager, 1)
        slots = usage.segments(shm_paths.base()) if self.peers.rank == 0 else 0
        self.samples["usage"] = {
            "segments": int(self.peers.total(slots)),
            "trainer": int(self.peers.slowest(watch.private[trainer_pid] - anonymous)),
            "agent": int(self.peers.slowest(sum(watch.private[pid] for pid in agents))),
            "descriptors": int(self.peers.slowest(watch.together - opened)),
        }
