"""The phases of a run, and their order."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.bench import limits, machine, restoring
from hyperpod_kit.checkpoint.bench.launch import Bench, BenchError

PHASES = ("save", "cold", "hot", "overlap")
_LAST_SECONDS = 450.0
"""A training loop is begun only if it is likely to end before the bench is this old."""

_GUESS = 60.0
"""Seconds of the first training loop; later ones are expected to take as long a byte as the slowest so far."""


class Run:
    """A size and a mode. `found` has its samples."""

    def __init__(self, bench: Bench, size: str, mode: str, repeat: int, say: Callable[[str], None]) -> None:
        self.bench, self.size, self.mode, self.repeat, self.say = bench, size, mode, repeat, say
        self.found: dict[str, Any] = {"size": size, "mode": mode, "phase_seconds": {}}

    def measure(self, phases: tuple[str, ...]) -> None:
        """Save, and the restores of it. Raises BenchError."""
        bench, size, mode, repeat = self.bench, self.size, self.mode, self.repeat
        place = bench.place(f"{size}-{mode}")
        self._timed("save", lambda: bench.phase("save", size, mode, repeat, place))
        if "cold" in phases:
            self._timed("cold", lambda: _cold(bench, size, mode, repeat, place, self.found["save"]["digests"]))
        if "hot" in phases:
            self._timed("hot", lambda: _hot(bench, size, mode, repeat, place))
        bench.forget(place)

    def train(self) -> None:
        """The training loop, overlapped and blocking. Raises BenchError."""
        place = self.bench.place(f"{self.size}-{self.mode}-training")
        self._timed("train", lambda: self.bench.phase("train", self.size, self.mode, self.repeat, place))
        self.bench.forget(place)

    def _timed(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        self.say(f"{self.size} {self.mode}: {name}")
        begin = time.monotonic()
        self.found[name] = work()
        self.found["phase_seconds"][name] = time.monotonic() - begin


def train_all(runs: list[Run], begin: float, say: Callable[[str], None]) -> list[str]:
    """The training loops of all runs as far as time permits; those that were left out, with the reason.

    They come last, because a loop of large steps takes longer than everything else. Raises BenchError.
    """
    left_out = []
    pace = 0.0
    for run in sorted(runs, key=lambda each: int(each.found["save"]["bytes"])):
        size = run.found["save"]["bytes"]
        expected = pace * size or _GUESS
        if time.monotonic() - begin + expected > _LAST_SECONDS:
            left_out.append(f"{run.size} {run.mode}: training loop left out, it would take about {expected:.0f} s more")
            say(left_out[-1])
            continue
        run.train()
        pace = max(pace, run.found["phase_seconds"]["train"] / size)
    return left_out


def _cold(bench: Bench, size: str, mode: str, repeat: int, place: Path, digests: list[str]) -> dict[str, Any]:
    """New processes that restore from storage, and between them plain reads of the same files."""
    taken: dict[str, Any] = {"seconds": [], "start": [], "limit": {str(n): [] for n in limits.READ_THREADS}}
    files = restoring.shards(place / "root")
    for _ in range(repeat):
        result = bench.phase("cold", size, mode, 1, place)
        if result["digests"] != digests:
            raise BenchError(f"{size} {mode}: the restored state is not the saved one")
        for name in ("seconds", "start"):
            taken[name].append(result[name])
        for way in limits.worth_asking(taken["limit"]):
            taken["page_cache"] = machine.empty_page_cache(files)
            bench.patience.quiet()
            taken["limit"][way].append(limits.read_seconds(files, int(way)))
    return taken


def _hot(bench: Bench, size: str, mode: str, repeat: int, place: Path) -> dict[str, Any]:
    """A trainer saves and is killed; again and again a new one restores from memory and is killed too."""
    digests = bench.phase("leave", size, mode, 1, place)["digests"]
    taken: dict[str, Any] = {"seconds": [], "start": [], "floor": {}}
    for _ in range(repeat):
        result = bench.phase("hot", size, mode, 1, place)
        if result["digests"] != digests:
            raise BenchError(f"{size} {mode}: the state restored from memory is not the saved one")
        for name in ("seconds", "start"):
            taken[name].append(result[name])
        for way, samples in result["floor"].items():
            taken["floor"].setdefault(way, []).extend(samples)
    return taken
