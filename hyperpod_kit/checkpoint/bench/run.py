"""One run: a size and a mode through all phases."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.bench import limits, machine, restoring
from hyperpod_kit.checkpoint.bench.launch import Bench, BenchError
from hyperpod_kit.checkpoint.bench.workload import SIZES

_FAR = 1.15
"""A way to read that is still this much slower than the best after three samples is not asked again."""

PHASES = ("save", "overlap", "cold", "hot")


def run(bench: Bench, size: str, mode: str, repeat: int, say: Callable[[str], None],
        phases: tuple[str, ...] = PHASES) -> dict[str, Any]:
    """Samples of every phase. Raises BenchError."""
    place = bench.place(f"{size}-{mode}")
    found: dict[str, Any] = {"size": size, "mode": mode, "phase_seconds": {}}

    def timed(name: str, words: str, work: Callable[[], dict[str, Any]]) -> None:
        say(f"{size} {mode}: {words}")
        begin = time.monotonic()
        found[name] = work()
        found["phase_seconds"][name] = time.monotonic() - begin

    timed("save", "save and persist", lambda: bench.phase("save", size, mode, repeat, place))
    if "overlap" in phases:
        timed("block", "training loop, blocking", lambda: bench.phase("block", size, mode, repeat, place))
        timed("overlap", "training loop, overlapped", lambda: bench.phase("overlap", size, mode, repeat, place))
    if "cold" in phases:
        timed("cold", "cold restore", lambda: _cold(bench, size, mode, repeat, place, found["save"]["digests"]))
    if "hot" in phases:
        timed("hot", "hot restore", lambda: _hot(bench, size, mode, repeat, place))
    bench.forget(place)
    return found


def _cold(bench: Bench, size: str, mode: str, repeat: int, place: Path, digests: list[str]) -> dict[str, Any]:
    """New processes that restore from storage, and between them plain reads of the same files."""
    taken: dict[str, Any] = {"seconds": [], "start": [], "limit": {str(n): [] for n in limits.READ_THREADS}}
    files = restoring.shards(place / "root")
    ways = list(limits.READ_THREADS)
    for number in range(repeat):
        result = bench.phase("cold", size, mode, 1, place)
        if result["digests"] != digests:
            raise BenchError(f"{size} {mode}: the restored state is not the saved one")
        for name in ("seconds", "start"):
            taken[name].append(result[name])
        for threads in ways:
            taken["page_cache"] = machine.empty_page_cache(files)
            machine.wait_quiet(SIZES[size].patience)
            taken["limit"][str(threads)].append(limits.read_seconds(files, threads))
        if number >= 2:
            fastest = min(min(samples) for samples in taken["limit"].values())
            ways = [way for way in ways if min(taken["limit"][str(way)]) <= _FAR * fastest]
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
