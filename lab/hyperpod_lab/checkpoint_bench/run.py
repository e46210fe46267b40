"""The phases of a run, and their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hyperpod_kit.storage.bench.replay.launch import BenchError
from hyperpod_lab.checkpoint_bench import limits, machine, restoring
from hyperpod_lab.checkpoint_bench.phases import Bench
from hyperpod_lab.checkpoint_bench.timed_assignment import LEAST

PHASES = ("save", "cold", "hot", "overlap")
_SAMPLES_SECONDS = 330.0
"""All phases but the training loops have so long for more than the least number of samples."""

_LAST_SECONDS = 450.0
"""A training loop is begun only if it is likely to end before the bench is this old."""

_GUESS = 60.0
"""Seconds of the first training loop; later ones are expected to take as long a byte as the slowest so far."""


class TimeShare:
    """Shares the time out among `count` phases: what an early one leaves, later ones have."""

    def __init__(self, begin: float, count: int) -> None:
        """`begin`: the bench's own, by time.monotonic()."""
        self.begin = begin
        self._count = count
        self._taken = 0

    def begin_next_phase_and_return_deadline(self) -> float:
        """Begin the next phase and return its deadline."""
        self._taken += 1
        return self.begin + _SAMPLES_SECONDS * self._taken / self._count

    @property
    def training_deadline(self) -> float:
        """Return the deadline of the training loops."""
        return self.begin + _LAST_SECONDS


class Run:
    """A size and a mode. `samples` has its figures."""

    def __init__(
        self, bench: Bench, size: str, mode: str, repeat: int, pace: TimeShare, say: Callable[[str], None]
    ) -> None:
        self.bench, self.size, self.mode, self.repeat, self.pace, self.say = bench, size, mode, repeat, pace, say
        self.samples: dict[str, Any] = {"size": size, "mode": mode, "phase_seconds": {}}

    def measure_saves_and_restores(self, phases: tuple[str, ...]) -> None:
        """Measure saves, then the restores of `phases`. Raises BenchError."""
        directory = self.bench.make_directory(f"{self.size}-{self.mode}")
        self._run_and_record(
            "save",
            lambda: self._run_phase("save", directory, self.repeat, self.pace.begin_next_phase_and_return_deadline()),
        )
        if "cold" in phases:
            self._run_and_record("cold", lambda: self._measure_cold_restores(directory))
        if "hot" in phases:
            self._run_and_record("hot", lambda: self._measure_hot_restores(directory))
        self.bench.end_agents_and_remove_run_files(directory)

    def measure_training_loop(self) -> None:
        """Measure the training loop, overlapped and blocking. Raises BenchError."""
        directory = self.bench.make_directory(f"{self.size}-{self.mode}-training")
        self._run_and_record(
            "train", lambda: self._run_phase("train", directory, self.repeat, self.pace.training_deadline)
        )
        self.bench.end_agents_and_remove_run_files(directory)

    def _run_phase(self, name: str, directory: Path, repeat: int = 1, deadline: float = 0.0) -> dict[str, Any]:
        return self.bench.run_phase(name, self.size, self.mode, repeat, directory, deadline)

    def _sample_numbers(self) -> Iterator[int]:
        """Yield sample numbers as long as there is time for another sample."""
        deadline = self.pace.begin_next_phase_and_return_deadline()
        for number in range(self.repeat):
            if number >= LEAST and time.monotonic() > deadline:
                return
            yield number

    def _measure_cold_restores(self, directory: Path) -> dict[str, Any]:
        """Restore from storage in new processes, and between them time plain reads of the same files."""
        taken: dict[str, Any] = {"seconds": [], "start": [], "limit": {str(n): [] for n in limits.READ_THREADS}}
        files = restoring.newest_shard_files(directory / "root")
        for _ in self._sample_numbers():
            figures = self._run_phase("cold", directory)
            self._require_equal_digests(figures["digests"], self.samples["save"]["digests"], "the restored state")
            for name in ("seconds", "start"):
                taken[name].append(figures[name])
            for way in limits.ways_that_may_be_fastest(taken["limit"]):
                taken["page_cache"] = machine.empty_page_cache_and_name_method(files)
                self.bench.patience.wait_until_quiet()
                taken["limit"][way].append(limits.time_read(files, int(way)))
        return taken

    def _measure_hot_restores(self, directory: Path) -> dict[str, Any]:
        """Let a trainer save and be killed, then again and again restore from memory in a new one that is killed
        too."""
        digests = self._run_phase("leave", directory)["digests"]
        taken: dict[str, Any] = {"seconds": [], "start": [], "floor": {}, "proof": {}}
        for _ in self._sample_numbers():
            figures = self._run_phase("hot", directory)
            self._require_equal_digests(figures["digests"], digests, "the state restored from memory")
            for name in ("seconds", "start"):
                taken[name].append(figures[name])
            for limit in ("floor", "proof"):
                for way, samples in figures[limit].items():
                    taken[limit].setdefault(way, []).extend(samples)
        return taken

    def _require_equal_digests(self, restored: list[str], saved: list[str], what: str) -> None:
        if restored != saved:
            raise BenchError(f"{self.size} {self.mode}: {what} is not the saved one")

    def _run_and_record(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        self.say(f"{self.size} {self.mode}: {name}")
        begin = time.monotonic()
        self.samples[name] = work()
        self.samples["phase_seconds"][name] = time.monotonic() - begin


def train_in_time_listing_left_out(runs: list[Run], pace: TimeShare, say: Callable[[str], None]) -> list[str]:
    """Run the training loops of all runs as far as time permits; return those that were left out, with the
    reason.

    They come last, because a loop of large steps takes longer than everything else. Raises BenchError.
    """
    left_out = []
    rate = 0.0  # seconds a byte
    for run in sorted(runs, key=lambda each: int(each.samples["save"]["bytes"])):
        size = run.samples["save"]["bytes"]
        expected = rate * size or _GUESS
        if time.monotonic() + expected > pace.training_deadline:
            left_out.append(f"{run.size} {run.mode}: training loop left out, it would take about {expected:.0f} s more")
            say(left_out[-1])
            continue
        run.measure_training_loop()
        rate = max(rate, run.samples["phase_seconds"]["train"] / size)
    return left_out
