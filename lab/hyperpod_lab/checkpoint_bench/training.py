"""A training loop that saves: what the overlapped copy costs, and how much slower steps are until it is durable."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.storage.bench.replay.peers import Peers
from hyperpod_kit.storage.bench.replay.replaying import wait_until_durable
from hyperpod_lab.checkpoint_bench import limits
from hyperpod_lab.checkpoint_bench.timed_assignment import TimedAssignment
from hyperpod_lab.checkpoint_bench.trained_workload import TrainedWorkload

_IDLE_STEPS = 1
_MOST_STEPS = 200


def measure_overlapped_and_blocking_training(
    peers: Peers, work: TrainedWorkload, directory: Path, assignment: TimedAssignment
) -> dict[str, Any]:
    """Run the training loop in both modes and return the samples: `overlap` and `block`, `floor`, and
    `forward_backward` that was made long enough."""
    memory = limits.MemoryFloor(work.tensors, assignment.threads)
    copies: list[float] = []
    for way in memory.ways:
        copies += [peers.max_over_ranks(memory.time_copy(way)) for _ in range(2)]
    floor = min(copies)
    del memory
    length = work.lengthen_batch(2.0 * floor, peers)
    return {
        "floor": floor,
        "forward_backward": length,
        "overlap": Training(peers, work, directory / "overlap", assignment, overlap=True).take_all_samples(),
        "block": Training(peers, work, directory / "block", assignment, overlap=False).take_all_samples(),
    }


class Training:
    """Steps of forward, backward, fence and optimizer. Every time is the slowest rank's."""

    def __init__(
        self, peers: Peers, work: TrainedWorkload, root: Path, assignment: TimedAssignment, *, overlap: bool
    ) -> None:
        self.peers, self.work, self.root, self.assignment, self.overlap = peers, work, root, assignment, overlap
        self.samples: dict[str, Any] = {"step": [], "save": [], "fence": [], "lost": [], "window": [], "steps": []}

    def take_all_samples(self) -> dict[str, Any]:
        """Train with one save in every few steps and return the samples; the manager is closed afterwards."""
        manager = Manager(self.root, overlap=self.overlap)
        state = State(self.work.model, self.work.optimizer)
        manager.restore(state)
        wait_until_durable(manager.save(0, state))
        while not self.assignment.has_enough_samples(len(self.samples["lost"]), self.peers.max_over_ranks):
            number = len(self.samples["lost"])
            for _ in range(_IDLE_STEPS):
                self.samples["step"].append(self._time_step_and_fence(manager)[0])
            self._save_and_train_until_durable(manager, state, number + 1)
        idle = statistics.median(self.samples["step"])
        self.samples["inflation"] = [
            window - steps * idle for window, steps in zip(self.samples["window"], self.samples["steps"], strict=True)
        ]
        if not manager.close():
            raise RuntimeError("the manager did not close cleanly")
        return self.samples

    def _time_step_and_fence(self, manager: Manager) -> tuple[float, float]:
        """Run one training step and return its seconds and those of waiting in the fence."""
        self.peers.barrier()
        begin = time.perf_counter()
        self.work.time_forward_backward()
        fence = time.perf_counter()
        if self.overlap:
            manager.fence()
        waited = time.perf_counter() - fence
        self.work.optimizer.step()
        return self.peers.max_over_ranks(time.perf_counter() - begin), self.peers.max_over_ranks(waited)

    def _save_and_train_until_durable(self, manager: Manager, state: State, step: int) -> None:
        """Save, then train until the save is durable on every rank."""
        self.peers.barrier()
        begin = time.perf_counter()
        handle = manager.save(step, state)
        saved = self.peers.max_over_ranks(time.perf_counter() - begin)
        total, fences, steps = saved, 0.0, 0
        while steps < _MOST_STEPS:
            spent, waited = self._time_step_and_fence(manager)
            total, fences, steps = total + spent, fences + waited, steps + 1
            if self.peers.all_ranks_true(handle.final):
                break
        wait_until_durable(handle)
        for name, value in (
            ("save", saved),
            ("fence", fences),
            ("lost", saved + fences),
            ("window", total),
            ("steps", steps),
        ):
            self.samples[name].append(value)
