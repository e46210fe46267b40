"""Mutants of the package, drawn by a seed: does the gate catch them, and do all tests?

    python -m tests.mutants --seed 1 --count 30 --place build/mutants     (needs coverage: pip install coverage)

`mutants.json` there is the list that was drawn, `rows.jsonl` gets a row for each that was tried: a run that was
interrupted goes on with the others. A mutant is tried on those unit tests of its package that execute its line in
process. Nothing of this checkout is changed: mutants live in a copy. One that changes nothing that can be seen is
written to `equivalent.json` by hand, {"MUTANT": "reason"}, and the next one of the seed takes its place.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Set, TypeVar, Union

import coverage

from tests.mutants.operators import Site, mutated, sites
from tests.suite.run import APART, can_run_apart

CHECKOUT = Path(__file__).resolve().parents[2]
MOST_TESTS = 60
"""Tests of a mutant that are run at most, those that take the fewest lines first: they look at it most closely."""
SECONDS = 900
MAP_SECONDS = 7200
SPARE = 3
"""Mutants that are drawn for each one that counts: some are equivalent, or no unit test executes their line."""
GATE = "not full and not rehearsal"
FULL = "full and not rehearsal"
USAGE_ERROR = 4
PENDING = "not tried yet"
PACKAGES = {
    "hyperpod_kit/aws": "tests/unit/aws",
    "hyperpod_kit/bundle": "tests/unit/bundle",
    "hyperpod_kit/checkpoint": "tests/unit/checkpoint",
    "hyperpod_kit/cluster": "tests/unit/cluster",
    "hyperpod_kit/config": "tests/unit/config",
    "hyperpod_kit/data": "tests/unit/data",
    "hyperpod_kit/infra": "tests/unit/infra",
    "hyperpod_kit/job": "tests/unit/job",
    "hyperpod_kit/node": "tests/unit/node",
    "hyperpod_kit/preflight": "tests/unit/preflight",
    "rehearsal/hyperpod_rehearsal": "rehearsal/rehearsal_tests",
    "hyperpod_kit/remote": "tests/unit/remote",
    "hyperpod_kit/slurm": "tests/unit/slurm",
    "hyperpod_kit/storage": "tests/unit/storage",
    "hyperpod_kit/system": "tests/unit/system",
    "hyperpod_kit/untrusted": "tests/unit/untrusted",
}
"""Package -> its unit tests."""

Row = Dict[str, Union[str, int]]
"""`mutant`, how many `tests` were run, and what came of those of the `gate` and of `all`."""
Work = TypeVar("Work")


@dataclass(frozen=True)
class Mutant:
    """`path`: below the checkout."""

    path: str
    site: Site

    @property
    def name(self) -> str:
        return f"{self.path}:{self.site.line} {self.site.operator} ({self.site.node})"

    @property
    def package(self) -> str:
        return next(package for package in PACKAGES if self.path.startswith(f"{package}/"))


def drawn(seed: int, packages: Sequence[str]) -> Iterator[Mutant]:
    """All mutants of the packages, in the order of the seed."""
    everything = [
        Mutant(str(path.relative_to(CHECKOUT)), site)
        for package in packages
        for path in sorted((CHECKOUT / package).rglob("*.py"))
        for site in sites(path.read_text())
    ]
    random.Random(seed).shuffle(everything)
    yield from everything


def files_by_package(mutants: Sequence[Mutant]) -> Dict[str, List[str]]:
    """The files in which the mutants are."""
    files: Dict[str, Set[str]] = {}
    for mutant in mutants:
        files.setdefault(mutant.package, set()).add(mutant.path)
    return {package: sorted(paths) for package, paths in files.items()}


def tracked_files() -> List[str]:
    """Files of the checkout that git knows, below it."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True)
    names = listing.stdout.split("\0")
    return [name for name in names if name and (CHECKOUT / name).exists()]


@dataclass(frozen=True)
class LineMap:
    """`data`: which tests execute which lines; `failed`: tests that fail without any mutant."""

    data: coverage.CoverageData
    failed: Sequence[str]


class Copy:
    """A copy of the checkout, in which one file is a mutant's at a time."""

    def __init__(self, place: Path) -> None:
        self.place = place
        # A mutant may send a signal to whom it should not: it sees no other processes.
        self._prefix = APART if can_run_apart() else []
        shutil.rmtree(self.place, ignore_errors=True)
        for name in tracked_files():
            copied = self.place / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, copied, follow_symlinks=False)

    def pytest(self, *words: str, seconds: float = SECONDS, **environment: str) -> int:
        """Its exit code: 0 all passed, 1 some failed, 5 none were selected; 124 when they hang."""
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "--timeout", "300", *words]
        given = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
        try:
            done = subprocess.run(
                [*self._prefix, *argv],
                cwd=self.place,
                env=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return 124
        return done.returncode

    def catches(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """What comes of the tests on the mutant."""
        if not tests:
            return "no test"
        path = self.place / mutant.path
        source = path.read_text()
        path.write_text(mutated(source, mutant.site))
        try:
            code = self.pytest("-x", *tests)
        finally:
            path.write_text(source)
        if code == USAGE_ERROR:
            raise RuntimeError(f"pytest does not know a test of {mutant.name}: remove the maps in {self.place.parent}")
        if code < 0:
            raise RuntimeError(f"the tests of {mutant.name} were ended by signal {-code}, from outside")
        if code == 0:
            return "missed"
        return "caught"


class Maps:
    """Which tests execute which lines of the drawn files, by package and marks; each made once and kept in `place`."""

    def __init__(self, place: Path, files: Dict[str, List[str]]) -> None:
        """`files`: in which mutants are, by package."""
        self._place = place
        self._files = files
        self._lock_by_package = {package: threading.Lock() for package in files}

    def make_and_read(self, copy: Copy, package: str, marks: str) -> LineMap:
        """Return the map of a package's tests with these marks, made in the copy where there is none.

        Raises RuntimeError where the tests do not come to their end within MAP_SECONDS.
        """
        traced = os.pathsep.join(self._files[package])
        digest = hashlib.sha256(traced.encode()).hexdigest()[:8]
        path = self._place / f"map-{package.replace('/', '-')}-{marks.split()[0]}-{digest}"
        failed_path = Path(f"{path}.failed")
        with self._lock_by_package[package]:
            if not failed_path.exists():
                path.unlink(missing_ok=True)
                environment = {"HPK_MUTANTS_MAP": str(path), "HPK_MUTANTS_TRACED": traced}
                plugin = ("-p", "tests.mutants.line_map")
                copy.pytest(*plugin, "-m", marks, PACKAGES[package], seconds=MAP_SECONDS, **environment)
        if not failed_path.exists():
            raise RuntimeError(f"{PACKAGES[package]} ({marks}) did not end within {MAP_SECONDS} s")
        data = coverage.CoverageData(basename=str(path))
        data.read()
        failed = json.loads(failed_path.read_text())
        if failed:
            print(f"{len(failed)} of {PACKAGES[package]} ({marks}) fail without a mutant: {failed_path}", flush=True)
        return LineMap(data, failed)

    def tests_of(self, mutant: Mutant, copy: Copy, marks: str) -> List[str]:
        """The tests that execute the mutant's line, those that execute the fewest lines of its file first."""
        line_map = self.make_and_read(copy, mutant.package, marks)
        contexts_by_line: Dict[int, List[str]] = {}
        for file in line_map.data.measured_files():
            if file.endswith(f"/{mutant.path}"):
                contexts_by_line = line_map.data.contexts_by_lineno(file)
        tests = set(contexts_by_line.get(mutant.site.line, [])) - {"", *line_map.failed}
        lines = {test: 0 for test in tests}
        for contexts in contexts_by_line.values():
            for test in tests & set(contexts):
                lines[test] += 1
        return sorted(tests, key=lambda test: (lines[test], test))[:MOST_TESTS]


def try_gate(mutant: Mutant, copy: Copy, maps: Maps) -> Row:
    """Return the row of a mutant: what the gate's tests say; where they miss it, `all` comes later."""
    tests = maps.tests_of(mutant, copy, GATE)
    outcome = copy.catches(mutant, tests)
    every = outcome if outcome == "caught" else PENDING
    return {"mutant": mutant.name, "tests": len(tests), "gate": outcome, "all": every}


def try_full(mutant: Mutant, copy: Copy, maps: Maps, row: Row) -> Row:
    """Return the row of a mutant that the gate misses with what all tests say."""
    tests = maps.tests_of(mutant, copy, FULL)
    outcome = copy.catches(mutant, tests) if tests else row["gate"]
    return {**row, "tests": int(row["tests"]) + len(tests), "all": outcome}


class Trials:
    """Tries mutants on `at_once` copies beside each other, and appends their rows to a file."""

    def __init__(self, place: Path, maps: Maps, at_once: int) -> None:
        self._rows_file = place / "rows.jsonl"
        self._maps = maps
        self._at_once = at_once
        self._copies: queue.Queue[Copy] = queue.Queue()
        for number in range(at_once):
            self._copies.put(Copy(place / f"copy-{number}"))
        self.rows: Dict[str, Row] = {}
        if self._rows_file.exists():
            entries = [json.loads(line) for line in self._rows_file.read_text().splitlines()]
            self.rows = {entry["mutant"]: entry for entry in entries}

    def make_maps(self, packages: Sequence[str]) -> None:
        """Make the gate's maps of these packages."""
        self._run_in_copies(lambda copy, package: self._maps.make_and_read(copy, package, GATE), packages)

    def try_all(self, mutants: Sequence[Mutant]) -> None:
        """Try those that have no row yet; the full tests come last: their maps take long."""
        self._run_in_copies(self._try_gate, [mutant for mutant in mutants if mutant.name not in self.rows])
        missed = [mutant for mutant in mutants if self.rows[mutant.name]["all"] == PENDING]
        self._run_in_copies(self._try_full, missed)

    def _try_gate(self, copy: Copy, mutant: Mutant) -> None:
        self._append(try_gate(mutant, copy, self._maps))

    def _try_full(self, copy: Copy, mutant: Mutant) -> None:
        self._append(try_full(mutant, copy, self._maps, self.rows[mutant.name]))

    def _append(self, row: Row) -> None:
        """Append a row; the last one of a mutant counts."""
        with open(self._rows_file, "a") as stream:
            stream.write(json.dumps(row) + "\n")
        self.rows[str(row["mutant"])] = row
        print(f"gate {row['gate']}, all {row['all']}: {row['mutant']}", flush=True)

    def _run_in_copies(self, work: Callable[[Copy, Work], object], entries: Sequence[Work]) -> None:
        def run(entry: Work) -> None:
            copy = self._copies.get()
            try:
                work(copy, entry)
            finally:
                self._copies.put(copy)

        with ThreadPoolExecutor(self._at_once) as pool:
            list(pool.map(run, entries))


def read(path: Path) -> Dict[str, str]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--place", type=Path, default=CHECKOUT / "build/mutants")
    parser.add_argument("--at-once", type=int, default=2, help="copies that run tests beside each other")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="only of this one; may be repeated")
    options = parser.parse_args()
    place: Path = options.place.resolve()
    place.mkdir(parents=True, exist_ok=True)
    equivalent = read(place / "equivalent.json")
    drawn_mutants = itertools.islice(drawn(options.seed, options.package or list(PACKAGES)), SPARE * options.count)
    all_candidates = list(drawn_mutants)
    candidates = [mutant for mutant in all_candidates if mutant.name not in equivalent]
    trials = Trials(place, Maps(place, files_by_package(all_candidates)), options.at_once)
    trials.make_maps(sorted(files_by_package(candidates[: options.count])))
    counted: List[Row] = []
    tried = 0
    while len(counted) < options.count and tried < len(candidates):
        batch = candidates[tried : tried + options.count - len(counted)]
        trials.try_all(batch)
        tried += len(batch)
        rows = [trials.rows[mutant.name] for mutant in batch]
        counted += [row for row in rows if row["tests"]]  # otherwise no unit test executes the line in process
    names = [row["mutant"] for row in counted]
    (place / "mutants.json").write_text(json.dumps({"seed": options.seed, "mutants": names}, indent=1))
    gate = sum(row["gate"] == "caught" for row in counted)
    full = sum(row["all"] == "caught" for row in counted)
    print(f"{len(counted)} mutants: the gate catches {gate}, all tests catch {full}")
    return 0 if len(counted) == options.count else 1


if __name__ == "__main__":
    sys.exit(main())
