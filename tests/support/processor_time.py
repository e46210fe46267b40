"""The processor time of each test: what decides which tests are `full`.

    HPK_TEST_TIMES=build/times.jsonl .venv/bin/python -m pytest tests/unit/config
    .venv/bin/python -m tests.support.processor_time build/times.jsonl

The first appends a line for each test; the second sums them up. Processor time is that of the test's process and of all
that it has started: as a control group counts it where one can be made, else of the living and reaped processes below
it, which leaves out daemons. It says nearly the same on a busy machine as on a quiet one; wall time does not. A
fixture's time is in the first test that needs it, and machines have groups of their own.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Union

import pytest

VARIABLE = "HPK_TEST_TIMES"
LIMIT = 3.0
"""Seconds of processor time above which a test is `full`, unless it is the only one of its invariant."""
FULL = "full"
_TICKS = os.sysconf("SC_CLK_TCK")


class Group:
    """A control group of this process, which counts what it and all that it starts have computed."""

    def __init__(self, parent: Path, usage: str) -> None:
        self._parent = parent
        # Not named after the process: in another namespace another one has its number.
        self._path = Path(tempfile.mkdtemp(prefix="hyperpod-kit-test-times-", dir=parent))
        self._usage = usage
        (self._path / "cgroup.procs").write_text(str(os.getpid()))

    def seconds(self) -> float:
        text = (self._path / self._usage).read_text()
        if self._usage == "cpuacct.usage":
            return int(text) / 1e9
        usage = dict(line.split() for line in text.splitlines())
        return int(usage["usage_usec"]) / 1e6

    def close(self) -> None:
        """Leave the group, and remove it unless a process is left in it."""
        with contextlib.suppress(OSError):
            (self._parent / "cgroup.procs").write_text(str(os.getpid()))
            self._path.rmdir()


class Tree:
    """What this process, its living descendants and those that were waited for have computed."""

    def seconds(self) -> float:
        return seconds_below(os.getpid())

    def close(self) -> None:
        pass


def counter() -> Union[Group, Tree]:
    """The more exact one that can be had."""
    for parent, usage in (("/sys/fs/cgroup/cpuacct", "cpuacct.usage"), ("/sys/fs/cgroup", "cpu.stat")):
        if Path(parent, usage).exists():
            with contextlib.suppress(OSError):
                return Group(Path(parent), usage)
    return Tree()


@dataclass(frozen=True)
class _Process:
    """One line of /proc: the parent, and the seconds of the process with those of its reaped children."""

    parent: int
    seconds: float


class ProcessorTime:
    """The pytest plugin that appends a line for each test."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).resolve()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._counter = counter()
        atexit.register(self._counter.close)  # behind the processes that tests have end with this one

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        wall, processor = time.monotonic(), self._counter.seconds()
        yield
        row = {
            "test": item.nodeid,
            "processor": round(max(0.0, self._counter.seconds() - processor), 3),
            "wall": round(time.monotonic() - wall, 3),
            "full": item.get_closest_marker(FULL) is not None,
        }
        line = json.dumps(row) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def seconds_below(root: int) -> float:
    """The processor time of a process, its reaped children and all of its living descendants."""
    processes = dict(_processes())
    children: Dict[int, List[int]] = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    total, pending = 0.0, [root]
    while pending:
        pid = pending.pop()
        if pid in processes:
            total += processes[pid].seconds
        pending.extend(children[pid])
    return total


def _processes() -> Iterator[tuple[int, _Process]]:
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text()
        except OSError:
            continue  # it has ended
        # The program's name is in parentheses and may contain any character.
        fields = stat.rpartition(")")[2].split()
        ticks = sum(int(field) for field in fields[11:15])
        yield int(name), _Process(parent=int(fields[1]), seconds=ticks / _TICKS)


@dataclass(frozen=True)
class Row:
    """What was measured of a test."""

    test: str
    processor: float
    wall: float
    full: bool


def read(path: Path) -> List[Row]:
    """The rows of a file, the last one of each test."""
    rows = {}
    for line in path.read_text().splitlines():
        row = Row(**json.loads(line))
        rows[row.test] = row
    return list(rows.values())


def _directory(row: Row, depth: int) -> str:
    """The directory of a test, cut to so many names."""
    return "/".join(row.test.partition("::")[0].split("/")[:-1][:depth])


def report(rows: Sequence[Row], depth: int) -> Iterator[str]:
    """A table by directory, and the tests whose mark does not follow from their processor time."""
    by_directory: Dict[str, List[Row]] = defaultdict(list)
    for row in rows:
        by_directory[_directory(row, depth)].append(row)
    yield f"{'directory':30} {'tests':>6} {'cpu s':>8} {'gate':>6} {'cpu s':>8}"
    for name, group in [*sorted(by_directory.items()), ("together", list(rows))]:
        gate = [row for row in group if not row.full]
        seconds, gate_seconds = sum(row.processor for row in group), sum(row.processor for row in gate)
        yield f"{name:30} {len(group):6} {seconds:8.1f} {len(gate):6} {gate_seconds:8.1f}"
    above = sorted((row for row in rows if row.processor > LIMIT and not row.full), key=lambda row: -row.processor)
    yield f"\n{len(above)} tests above {LIMIT:g} s of processor time are not marked {FULL!r}:"
    for row in above:
        yield f"{row.processor:8.1f}  {row.test}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Sum up the processor times of tests.")
    parser.add_argument("file", type=Path, help=f"what {VARIABLE} named")
    parser.add_argument("--depth", type=int, default=3, help="names of a directory in the table (3)")
    options = parser.parse_args()
    print("\n".join(report(read(options.file), options.depth)))


if __name__ == "__main__":
    main()
