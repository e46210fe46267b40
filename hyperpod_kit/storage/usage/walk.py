"""A walk over a tree by several processes, which goes on where an earlier one was killed."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Mapping

from hyperpod_kit.errors import HyperpodKitError, Unreachable
from hyperpod_kit.storage.usage import scan
from hyperpod_kit.storage.usage.ledger import UsageLedger
from hyperpod_kit.storage.usage.scan import WalkDirectory
from hyperpod_kit.system import mountinfo
from hyperpod_kit.untrusted import owner

LIMIT = 20_000
"""Entries after which a task gives back what it has not seen; a killed walk looks at so many again, per process."""
FIRST_LIMIT = 2_000
"""The same while others have nothing to do."""
BATCH = 500
"""Directories of a task, at most: telling and hearing costs as much as looking at some."""
COMMIT_SECONDS = 1.0
DEATHS = 3
"""Of processes over one directory, before the walk gives up."""
HUNG = 60.0
"""Seconds without work after which a process hangs: a file system asks for no more, one that a user serves may."""
HANGS = 20
"""Of processes that look with care, after which it is the file system itself that does not answer."""
MOST = 8
"""Processes, unless asked for more: what they share they share with the machine's other work."""


@dataclass(frozen=True)
class WalkAsked:
    """`depth`: levels of directories that are told apart; `marks`: path -> name of those told apart at any level."""

    root: str
    depth: int = 2
    marks: Mapping[str, str] = field(default_factory=dict)
    workers: int = 0

    def about(self) -> dict[str, object]:
        """What has to be the same for a walk to be continued."""
        return {"root": self.root, "depth": self.depth, "marks": dict(self.marks)}

    @property
    def processes(self) -> int:
        """As asked, else one a core, but MOST."""
        return self.workers or min(MOST, len(os.sched_getaffinity(0)))


def walk(asked: WalkAsked, ledger: UsageLedger, progress: Callable[[int], None]) -> None:
    """Count everything below `asked.root`; `progress(inodes so far)` every second or so.

    File systems that are mounted below the root are not entered. Raises HyperpodKitError when the processes that look
    keep dying, Unreachable when they keep hanging, OSError when the root is no directory.
    """
    owner.run_as_owner(asked.root, lambda: os.close(os.open(asked.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
    if not ledger.resumed:
        ledger.push(WalkDirectory(asked.root, 0, asked.root, ""))
    ledger.commit()
    pool = _Pool(asked, ledger)
    try:
        pool.run(progress)
    finally:
        pool.stop()
    ledger.commit()


class _Worker:
    def __init__(self, config: str, careful: bool) -> None:
        self.careful = careful
        handle = os.memfd_create("usage")
        try:
            os.ftruncate(handle, scan.PAGE)
            self.where = scan.WhereAbouts(handle)
            argv = [sys.executable, "-I", "-S", str(Path(scan.__file__)), str(handle)]
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(handle,))
        finally:
            os.close(handle)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.into, self.out = self.process.stdin, self.process.stdout
        self.task: int | None = None
        self._half = b""
        self._seen: tuple[int, float] = (0, 0.0)
        self._since = time.monotonic()
        self.send(config)

    def hangs(self) -> bool:
        """Whether it has a task and has not worked for HUNG seconds."""
        now, seen = time.monotonic(), owner.progress(self.process.pid)
        if self.task is None or seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > HUNG

    def send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # its end is seen where it is read
            self.into.write(line.encode() + b"\n")
            self.into.flush()

    def lines(self) -> list[bytes] | None:
        """Whole lines that have come; None at its end."""
        data = os.read(self.out.fileno(), 1 << 16)
        if not data:
            return None
        *whole, self._half = (self._half + data).split(b"\n")
        return whole

    def stop(self) -> None:
        self.process.kill()
        # It may hang in the kernel on a dead mount: that is not waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        self.where.close()
        self.out.close()
        with contextlib.suppress(BrokenPipeError):
            self.into.close()


class _Pool:
    def __init__(self, asked: WalkAsked, ledger: UsageLedger) -> None:
        self._asked = asked
        self._unanswered: list[str] = []
        self._hangs = 0
        self._ledger = ledger
        self._selector = selectors.DefaultSelector()
        self._deaths = 0
        self._idle: list[_Worker] = []
        self._processes = asked.processes
        for _ in range(self._processes):
            self._start()

    def _start(self) -> None:
        worker = _Worker(self._config(), bool(self._unanswered))
        self._selector.register(worker.out, selectors.EVENT_READ, worker)
        self._idle.append(worker)

    def _config(self) -> str:
        """With the mounts of now; after a hang each entry is looked at with care, which takes three times as long."""
        root = self._asked.root
        table = mountinfo.parse(mountinfo.read())
        config = {
            "root": root,
            "depth": self._asked.depth,
            "marks": dict(self._asked.marks),
            "elsewhere": [one.path for one in table if one.path != root and mountinfo.is_below(one.path, root)],
            "unanswered": self._unanswered,
            "careful": bool(self._unanswered),
            "now": self._ledger.begun,
        }
        return json.dumps(config)

    def stop(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.stop()
        self._selector.close()

    def run(self, progress: Callable[[int], None]) -> None:
        committed = time.monotonic()
        while self._hand_out():
            for key, _ in self._selector.select(COMMIT_SECONDS):
                self._hear(key.data)
            for worker in [key.data for key in self._selector.get_map().values()]:
                if worker.hangs():
                    self._hung(worker)
            if time.monotonic() - committed >= COMMIT_SECONDS:
                self._ledger.commit()
                progress(self._ledger.counted())
                committed = time.monotonic()

    def _hand_out(self) -> bool:
        """Whether somebody still has a task."""
        while self._idle:
            found = self._ledger.take(BATCH, self._processes)
            if found is None:
                break
            worker = self._idle.pop()
            worker.task, directories = found
            limit = FIRST_LIMIT if self._idle else LIMIT
            worker.send(json.dumps({"id": worker.task, "directories": directories, "limit": limit}))
        return len(self._idle) < len(self._selector.get_map())

    def _hear(self, worker: _Worker) -> None:
        lines = worker.lines()
        if lines is None:
            self._died(worker)
            return
        for line in lines:
            part = json.loads(line)
            assert worker.task is not None
            self._ledger.part(worker.task, part)
            if "end" in part:
                worker.task = None
                self._idle.append(worker)

    def _hung(self, worker: _Worker) -> None:
        """One directory stays uncounted, and the walk goes on."""
        path = worker.where.noted()
        self._unanswered.append(path)
        # Whoever looks without care may all have come to what one user has mounted.
        self._hangs += worker.careful
        if self._hangs > HANGS:
            raise Unreachable(
                f"{self._asked.root} does not answer: nothing came of {path} for {HUNG:.0f} s, as of {HANGS} others",
                hint="findmnt --list",
            )
        self._selector.unregister(worker.out)
        worker.stop()
        self._replace(worker)

    def _died(self, worker: _Worker) -> None:
        self._selector.unregister(worker.out)
        worker.stop()
        self._deaths += 1
        if self._deaths > DEATHS:
            raise HyperpodKitError(
                f"the processes that look at files die: the last one ended with {worker.process.returncode}",
                hint="free memory, then the same words again: the walk goes on where it was",
            )
        self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        if worker in self._idle:
            self._idle.remove(worker)
        if worker.task is not None:
            self._ledger.give_back(worker.task)
        self._start()
