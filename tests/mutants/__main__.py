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
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Set

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

    def __init__(self, place: Path, files: Dict[str, List[str]]) -> None:
        """`files`: in which mutants are, by package."""
        self.place = place / "copy"
        self._files = files
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

    def map_of(self, package: str, marks: str, place: Path) -> LineMap:
        """Return which tests with these marks execute which lines of a package's drawn files; made once and kept.

        Raises RuntimeError where the tests do not come to their end within MAP_SECONDS.
        """
        traced = os.pathsep.join(self._files[package])
        digest = hashlib.sha256(traced.encode()).hexdigest()[:8]
        path = place / f"map-{package.replace('/', '-')}-{marks.split()[0]}-{digest}"
        failed_path = Path(f"{path}.failed")
        if not failed_path.exists():
            path.unlink(missing_ok=True)
            environment = {"HPK_MUTANTS_MAP": str(path), "HPK_MUTANTS_TRACED": traced}
            plugin = ("-p", "tests.mutants.line_map")
            self.pytest(*plugin, "-m", marks, PACKAGES[package], seconds=MAP_SECONDS, **environment)
        if not failed_path.exists():
            raise RuntimeError(f"{PACKAGES[package]} ({marks}) did not end within {MAP_SECONDS} s")
        data = coverage.CoverageData(basename=str(path))
        data.read()
        failed = json.loads(failed_path.read_text())
        if failed:
            print(f"{len(failed)} of {PACKAGES[package]} ({marks}) fail without a mutant: {failed_path}", flush=True)
        return LineMap(data, failed)

    def tests_of(self, mutant: Mutant, line_map: LineMap) -> List[str]:
        """Those that execute its line, those that execute the fewest lines of its file first."""
        file = str(self.place / mutant.path)
        contexts_by_line = line_map.data.contexts_by_lineno(file)
        tests = set(contexts_by_line.get(mutant.site.line, [])) - {"", *line_map.failed}
        lines = {test: 0 for test in tests}
        for contexts in contexts_by_line.values():
            for test in tests & set(contexts):
                lines[test] += 1
        return sorted(tests, key=lambda test: (lines[test], test))[:MOST_TESTS]

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
        if code == 0:
            return "missed"
        return "caught"

    def try_on(self, mutant: Mutant, place: Path) -> Dict[str, object]:
        """Return the row of a mutant: what the gate's tests say, and where they miss it, what all say."""
        gate_tests = self.tests_of(mutant, self.map_of(mutant.package, GATE, place))
        gate = self.catches(mutant, gate_tests)
        row: Dict[str, object] = {"mutant": mutant.name, "tests": len(gate_tests), "gate": gate, "all": gate}
        if gate == "caught":
            return row
        full_tests = self.tests_of(mutant, self.map_of(mutant.package, FULL, place))
        full = self.catches(mutant, full_tests)
        row["tests"] = len(gate_tests) + len(full_tests)
        if full_tests:
            row["all"] = full
        return row


def read(path: Path) -> Dict[str, str]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--place", type=Path, default=CHECKOUT / "build/mutants")
    parser.add_argument("--at-once", type=int, default=2, help="maps that are made beside each other")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="only of this one; may be repeated")
    options = parser.parse_args()
    place: Path = options.place.resolve()
    place.mkdir(parents=True, exist_ok=True)
    equivalent = read(place / "equivalent.json")
    rows_file = place / "rows.jsonl"
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()] if rows_file.exists() else []
    tried = {row["mutant"]: row for row in rows}
    packages = options.package or list(PACKAGES)
    candidates = list(itertools.islice(drawn(options.seed, packages), SPARE * options.count))
    copy = Copy(place, files_by_package(candidates))
    due = [mutant for mutant in candidates if mutant.name not in {*equivalent, *tried}]
    packages_due = sorted(files_by_package(due[: max(0, options.count - len(tried))]))
    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(lambda package: copy.map_of(package, GATE, place), packages_due))
    names: List[str] = []
    counts = {"gate": 0, "all": 0}
    for mutant in candidates:
        if len(names) == options.count:
            break
        if mutant.name in equivalent:
            continue
        row = tried.get(mutant.name)
        if row is None:
            row = copy.try_on(mutant, place)
            with open(rows_file, "a") as stream:
                stream.write(json.dumps(row) + "\n")
        if row["tests"] == 0:
            continue  # no unit test executes its line in process: other tests do, or none
        names.append(mutant.name)
        for suite in counts:
            counts[suite] += row[suite] == "caught"
        print(f"{len(names):2}/{options.count} gate {row['gate']}, all {row['all']}: {mutant.name}", flush=True)
        (place / "mutants.json").write_text(json.dumps({"seed": options.seed, "mutants": names}, indent=1))
    print(f"{len(names)} mutants: the gate catches {counts['gate']}, all tests catch {counts['all']}")
    return 0 if len(names) == options.count else 1


if __name__ == "__main__":
    sys.exit(main())
