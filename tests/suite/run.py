"""Runs parts of the test suite, lanes beside each other, and closes with one line over all of them."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import deque
from pathlib import Path
from typing import Callable, Deque, Dict, Iterable, List, Optional, Sequence

from tests.suite.excuses import judged
from tests.suite.outcome import Report, parse
from tests.suite.parts import Lane, Part
from tests.support import memory

PYTEST = [".venv/bin/python", "-m", "pytest", "-p", "no:cacheprovider"]
APART = [
    *["unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c"],
    # The shell stays as the namespace's first process: it reaps what tests leave to it.
    'mount -t tmpfs -o size=60% tests /dev/shm && "$@"; exit $?',
    "apart",
]
PREFIX = {
    Lane.MACHINES: [],
    Lane.SLURM: APART,
    Lane.MOUNTS: APART,
    Lane.STEPS: APART,
    # What waits has first call on the processors, what computes is behind it.
    Lane.PROCESSOR: [*APART, "nice", "-n", "10"],
}
COMPUTING = (Lane.STEPS, Lane.PROCESSOR)
"""What can run beside anything."""
WAITING = tuple(lane for lane in Lane if lane is not Lane.PROCESSOR)
LONGEST = (Lane.MACHINES, Lane.STEPS)
Queues = Sequence[Deque[Part]]
"""Of a lane: it takes its next part from the first one that has any."""
INTERRUPTED = 130


class Run:
    """The pytest process of a part; its lines go to stdout behind the part's name as they come."""

    def __init__(self, part: Part, checkout: Path, workers: int, report: Path, apart: bool) -> None:
        self.part = part
        self._path = report
        self._begun = time.monotonic()
        prefix = PREFIX[part.lane] if apart else []
        junit = [f"--junitxml={report}", "-o", "junit_family=xunit1"]
        argv = [*prefix, *PYTEST, *junit, *part.arguments(checkout, workers)]
        self._process = subprocess.Popen(
            argv, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.status: Optional[int] = None
        self.seconds = 0.0
        self.processor_seconds = 0.0
        self.report: Optional[Report] = None
        self.wrongly_skipped = 0

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print(f"{self.part.name:12} | {line}", end="", flush=True)

    def has_ended(self) -> bool:
        """Whether pytest has ended; then what came of the part is known."""
        pid, wait_status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid == 0:
            return False
        status = os.waitstatus_to_exitcode(wait_status)
        self._process.returncode = status
        self.processor_seconds = usage.ru_utime + usage.ru_stime
        self._reader.join()
        self.seconds = time.monotonic() - self._begun
        try:
            self.report = parse(self._path.read_text())
        except (OSError, ElementTree.ParseError) as err:
            print(f"which tests of {self.part.name} were skipped or failed is not known: {err}")
            status = status or 1
        self.status = status
        return True

    def judge(self, root: bool) -> None:
        """Print what was skipped; a skip that nothing excuses makes the part fail."""
        if self.report is not None:
            self.wrongly_skipped = judged(self.report.skipped, root)
        if self.wrongly_skipped and not self.status:
            self.status = 1

    def failed(self) -> int:
        """How many tests have failed; at least one where the part has."""
        counted = len(self.report.failures) + self.wrongly_skipped if self.report is not None else 0
        return max(counted, 1 if self.status else 0)


def run_lanes(lanes: Iterable[Queues], start: Callable[[Part], Run], ended: Callable[[Run], None]) -> bool:
    """Start the next part of a lane when the one before has ended. Whether Ctrl-C has ended it early.

    A queue that several lanes have runs so many of its parts at once.
    Ctrl-C reaches every pytest too, which cleans up: each is waited for, and no further part starts.
    """
    numbered = dict(enumerate(lanes))
    running: Dict[int, Run] = {}
    interrupted = False
    while running or (any(map(any, numbered.values())) and not interrupted):
        try:
            for number, queues in numbered.items():
                if any(queues) and number not in running and not interrupted:
                    running[number] = start(next(queue for queue in queues if queue).popleft())
            for number, run in list(running.items()):
                if run.has_ended():
                    del running[number]
                    ended(run)
            time.sleep(0.2)
        except KeyboardInterrupt:
            interrupted = True
    return interrupted


def stages_of(parts: Sequence[Part], apart: bool, workers: int) -> List[List[Queues]]:
    """The lanes of each stage, which run beside each other; one stage begins when the one before has ended.

    Where the machines' tests cannot run beside anything else there are two stages: what computes comes first.
    """
    of_lane = {lane: deque(part for part in parts if part.lane is lane) for lane in Lane}
    computing = of_lane[Lane.PROCESSOR]
    computing_lanes: List[Queues] = [(computing,)] * workers
    if apart:
        # When the longest of those that wait have ended, processors would be idle: more of what computes runs at once.
        waiting: Dict[Lane, List[Deque[Part]]] = {lane: [of_lane[lane]] for lane in WAITING}
        for lane in LONGEST:
            if of_lane[lane]:
                waiting[lane].append(computing)
        return [[*waiting.values(), *computing_lanes]]
    machines_last = deque(part for lane in reversed(WAITING) if lane not in COMPUTING for part in of_lane[lane])
    return [[(of_lane[Lane.STEPS],), *computing_lanes], [(machines_last,)]]


def workers_of(part: Part, parts: Sequence[Part], workers: int) -> int:
    """How many processes a part has for itself: the others are there for other parts, if there are any."""
    if part.lane not in COMPUTING:
        return 1
    computing = sum(1 for other in parts if other.lane in COMPUTING)
    return workers if computing == 1 else 1


def can_run_apart() -> bool:
    """Whether processes can be given namespaces of their own here."""
    if os.geteuid() != 0:
        return False
    probe = subprocess.run([*APART, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return probe.returncode == 0


def prepare(checkout: Path) -> None:
    """What holds for all parts."""
    os.environ.update(memory.IN_LARGE_PAGES)
    # Thousands of processes of the tests import this package, many as a user who may not write here: compiled once.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall = [PYTEST[0], "-m", "compileall", "-q", "-j", "0", "hyperpod_kit", "lab", "tests", "examples"]
    subprocess.run(compileall, cwd=checkout)
    for path in closed_above(checkout) if os.geteuid() == 0 else ():
        print(f"tests that run jobs as an ordinary user will fail: {path} is closed to others; clone to /srv, say")
    if os.stat("/tmp").st_dev != os.stat("/").st_dev:
        # Some tests need a directory above which nothing is mounted.
        os.environ.setdefault("TMPDIR", "/var/tmp")


def closed_above(checkout: Path) -> List[str]:
    """Directories on the way to the checkout that an ordinary user may not pass; jobs of tests run as one."""
    return [str(path) for path in (checkout, *checkout.parents) if not path.stat().st_mode & 0o001]
