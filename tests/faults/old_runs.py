"""Runs that are older than a day end, one after the other, until so many captures have been left in memory.

    python -m tests.faults.old_runs --captures 200 --rows FILE [--seed N] [--faketime LIBRARY]

Each run is real: trainers, agents and memory of its own, SIGKILL to all of them. A row of JSON for each in FILE, with
what it left and what was lost; the last line on standard output counts them. Exit code 0: nothing was lost, and memory
was empty in the end.

With --faketime the day is one of the wall clock of all these processes. LIBRARY is that of Debian's package libfaketime
(/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1). The times of files stay those of the kernel (NO_FAKE_STAT): where
they move along with the clock, an age that is taken from them looks right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

from hyperpod_lab.torture import day, days
from hyperpod_lab.torture.days import DayEvent, DayOutcome, DayScene, DayWay
from hyperpod_lab.torture.ground import temporary_ground

EVENTS = (
    DayEvent.STORAGE_AWAY,
    DayEvent.ANOTHER_RUN,
    DayEvent.STORAGE_THERE,
    DayEvent.CLOCK_SET,
    DayEvent.DAY_PASSES,
)
"""Those in which nothing may be lost."""

CADENCES = (0, 5)


def scenes(*, faketime: bool) -> List[DayScene]:
    """Every event, way and cadence, on one node and on two with copies at each other."""
    ways = (DayWay.TIMES,) if faketime else tuple(DayWay)
    return [
        DayScene(event, way, memory, world)
        for world, memory, way, event in itertools.product((1, 1, 2), CADENCES, ways, EVENTS)
    ]


def played(
    captures: int, seed: int, every: List[DayScene], pass_day: Callable[[str], None]
) -> Iterator[Dict[str, Any]]:
    """Runs until they have left so many captures, copies included: a row for each."""
    left = 0
    with temporary_ground() as here:
        for number, scene in enumerate(itertools.cycle(every)):
            if left >= captures:
                return
            began = time.monotonic()
            outcome = days.play_one_day_scene(here.make_subground(str(number)), seed + number, scene, pass_day)
            left += outcome.captures + outcome.copies
            yield row(scene, outcome, seed + number, time.monotonic() - began)


def row(scene: DayScene, outcome: DayOutcome, seed: int, seconds: float) -> Dict[str, Any]:
    return {
        "event": scene.event.value,
        "way": scene.way.value,
        "cadences": 2 if scene.memory else 1,
        "nodes": scene.world,
        "seed": seed,
        "captures": outcome.captures,
        "copies": outcome.copies,
        "lost": outcome.lost,
        "wrong": outcome.wrong,
        "seconds": round(seconds, 1),
    }


def totals(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    counts: Counter[str] = Counter()
    for one in rows:
        for name in ("captures", "copies", "lost"):
            counts[name] += one[name]
        counts["wrong"] += bool(one["wrong"])
        counts["runs"] += 1
    return dict(counts)


class WallClock:
    """The wall clock of this process, and of all that it starts, by libfaketime."""

    SLEEP = """
import select
import time

# libfaketime answers EINVAL to the call that Python 3.11 and later make here, unless it may fake that clock too.
time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._hours = 0

    def day_passes(self, folder: str) -> None:
        """For all of them at once, and never back."""
        self._hours += 25
        replacement = self._path.with_suffix(".new")
        replacement.write_text(f"+{self._hours}h\n")
        replacement.replace(self._path)

    @classmethod
    def begin(cls, library: str) -> WallClock:
        """This process, started again with that library where it was not."""
        path = os.environ.get("FAKETIME_TIMESTAMP_FILE")
        if path:
            return cls(path)
        place = Path(tempfile.mkdtemp(prefix="old-runs-"))
        (place / "now").write_text("+0\n")
        (place / "sitecustomize.py").write_text(cls.SLEEP)
        settings = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(place / "now"),
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": os.pathsep.join([str(place), os.getcwd(), os.environ.get("PYTHONPATH", "")]),
        }
        os.execve(sys.executable, [sys.executable, "-m", "tests.faults.old_runs", *sys.argv[1:]], os.environ | settings)


def main(argv: List[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captures", type=int, default=200)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faketime", metavar="LIBRARY")
    args = parser.parse_args(argv)
    pass_day: Callable[[str], None] = day.backdate_run
    if args.faketime:
        pass_day = WallClock.begin(args.faketime).day_passes
    rows = []
    with args.rows.open("a") as out:
        for one in played(args.captures, args.seed, scenes(faketime=bool(args.faketime)), pass_day):
            rows.append(one)
            print(json.dumps({"wall": round(time.time()), **one}), file=out, flush=True)
            if one["wrong"]:
                print(f"WRONG: {one}", flush=True)
    found = totals(rows)
    print(json.dumps(found))
    return 1 if found.get("lost") or found.get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
