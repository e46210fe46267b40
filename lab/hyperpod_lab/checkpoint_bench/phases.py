"""The phases of a bench run, each in processes of its own that share one patience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hyperpod_kit.storage.bench.replay.launch import RankLauncher
from hyperpod_lab.checkpoint_bench import machine, timed_rank
from hyperpod_lab.checkpoint_bench.timed_assignment import TimedAssignment

_PRELOAD = ("hyperpod_lab.checkpoint_bench.restoring", "hyperpod_lab.checkpoint_bench.training")


class Bench(RankLauncher):
    """Starts the ranks of the bench's phases."""

    def __init__(self, base: Path, shared: str, patience: float) -> None:
        """`patience`: seconds that all phases together may wait for a quiet machine."""
        super().__init__(base, shared, _PRELOAD)
        self.patience = machine.QuietWait(patience)

    def run_phase(
        self, phase: str, size: str, mode: str, repeat: int, directory: Path, deadline: float
    ) -> dict[str, Any]:
        """Run all ranks of a phase and return rank 0's result, with `digests` of all. After `deadline`
        (time.monotonic()) the least number of samples is enough. Raises BenchError."""
        assignments = [
            TimedAssignment(**vars(assignment), deadline=deadline, patience=self.patience.remaining)
            for assignment in self.make_assignments(phase, size, mode, repeat, directory)
        ]
        results = self.run_ranks(timed_rank.run_phase_and_exit, assignments)
        self.patience.remaining = min(result.pop("patience") for result in results)
        return {**results[0], "digests": [result.pop("digest", None) for result in results]}
