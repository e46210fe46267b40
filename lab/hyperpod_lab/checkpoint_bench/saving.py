"""Stall and persist, with the memory floor and the write limit measured between the saves."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.storage.bench.replay.peers import Peers
from hyperpod_kit.storage.bench.replay.replaying import wait_until_durable
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
            "bytes": int(peers.sum_over_ranks(work.bytes)),
            "tensors": len(work.tensors),
            "stall": [],
            "persist": [],
            "disturbed": 0,
            "floor": {way: [] for way in self.floor.ways},
            "write": {str(n): [] for n in limits.WRITE_THREADS},
        }

    def take_all_samples(self) -> dict[str, Any]:
        """Take all samples and return them; the manager is closed and its memory free afterwards."""
        anonymous, opened = usage.anonymous_memory_bytes(os.getpid()), usage.descriptor_count(os.getpid())
        begin = time.perf_counter()
        manager = Manager(self.root)
        self.samples["start"] = self.peers.max_over_ranks(time.perf_counter() - begin)
        manager.restore(self.state)
        stall, persist = self.save_and_time_stall_and_persist(manager, 0)
        self.samples["first"] = {"stall": stall, "persist": persist}
        self._save_and_record_engine_usage(manager, anonymous, opened)
        while not self.assignment.has_enough_samples(len(self.samples["stall"]), self.peers.max_over_ranks):
            number = len(self.samples["stall"])
            self.sample_memory_copy_floor()
            stall, persist = self.save_and_time_stall_and_persist(manager, number + 10)
            self.samples["stall"].append(stall)
            self.samples["persist"].append(persist)
            self._sample_write_limit(number)
        if not manager.close():
            raise RuntimeError("the manager did not close cleanly")
        return self.samples

    def wait_until_quiet_counting_disturbed(self) -> None:
        """Wait for a quiet machine; a sample that begins on a busy one is counted as disturbed."""
        if self.peers.rank == 0:
            self.samples["disturbed"] += not self.patience.wait_until_quiet()
        self.peers.barrier()

    def sample_memory_copy_floor(self) -> None:
        """Take one sample of each way to copy; slow ways are left out from then on."""
        for way in self.floor.ways:
            self.wait_until_quiet_counting_disturbed()
            self.work.update_all_values()
            self.peers.barrier()
            self.samples["floor"][way].append(self.peers.max_over_ranks(self.floor.time_copy(way)))
        self.floor.ways = limits.ways_that_may_be_fastest(self.samples["floor"])

    def save_and_time_stall_and_persist(self, manager: Manager, step: int) -> tuple[float, float]:
        """Save a changed state once and return (stall, persist); the checkpoint before it is removed."""
        self.wait_until_quiet_counting_disturbed()
        self.work.update_all_values()
        self.peers.barrier()
        begin = time.perf_counter()
        handle = manager.save(step, self.state)
        returned = time.perf_counter()
        wait_until_durable(handle)
        end = time.perf_counter()
        stall, persist = self.peers.max_over_ranks(returned - begin), self.peers.max_over_ranks(end - returned)
        self._remove_previous_checkpoint(handle.checkpoint_id)
        return stall, persist

    def _remove_previous_checkpoint(self, new_checkpoint_id: str | None) -> None:
        """Remove the checkpoint before this one, so that the disk holds two at most."""
        if self.peers.rank == 0 and self._last is not None:
            by_descriptor.remove_tree(self.root / self._last, ignore_errors=True)
        self._last = new_checkpoint_id
        self.peers.barrier()

    def _sample_write_limit(self, number: int) -> None:
        for way in limits.ways_that_may_be_fastest(self.samples["write"]):
            self.wait_until_quiet_counting_disturbed()
            name = f"limit-{self.peers.rank}-{number}"
            self.samples["write"][way].append(
                self.peers.max_over_ranks(
                    limits.time_write_and_fsync(self.floor.map, self.work.bytes, self.directory, name, int(way))
                )
            )
            self.peers.barrier()

    def _save_and_record_engine_usage(
        self, manager: Manager, private_bytes_before: int, descriptors_before: int
    ) -> None:
        """Save once more, untimed, and record the memory and descriptors that the engine needs beside its slots."""
        trainer_pid = os.getpid()
        agents = usage.find_child_agent_pids()
        with usage.Watch([trainer_pid, *agents]) as watch:
            self.save_and_time_stall_and_persist(manager, 1)
        slots = 0
        if self.peers.rank == 0:
            slots = usage.shared_memory_segment_bytes(shm_paths.shared_memory_root())
        self.samples["usage"] = {
            "segments": int(self.peers.sum_over_ranks(slots)),
            "trainer": int(self.peers.max_over_ranks(watch.private[trainer_pid] - private_bytes_before)),
            "agent": int(self.peers.max_over_ranks(sum(watch.private[pid] for pid in agents))),
            "descriptors": int(self.peers.max_over_ranks(watch.together - descriptors_before)),
        }
