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
MAX_DEATHS = 3
"""Of processes over one directory, before the walk gives up."""
HANG_SECONDS = 60.0
"""Seconds without work after which a process hangs: a file system asks for no more, one that a user serves may."""
MAX_HANGS = 20
"""Of processes that look with care, after which it is the file system itself that does not answer."""
MAX_PROCESSES = 8
"""Processes, unless asked for more: what they share they share with the machine's other work."""


@dataclass(frozen=True)
class WalkRequest:
    """`depth`: levels of directories that are told apart; `marks`: path -> name of those told apart at any level."""

    root: str
    depth: int = 2
    marks: Mapping[str, str] = field(default_factory=dict)
    workers: int = 0

    def resume_identity(self) -> dict[str, object]:
        """Return what has to be the same for a walk to be continued."""
        return {"root": self.root, "depth": self.depth, "marks": dict(self.marks)}

    @property
    def process_count(self) -> int:
        """Return how many processes scan: as asked, else one per core, MAX_PROCESSES at most."""
        return self.workers or min(MAX_PROCESSES, len(os.sched_getaffinity(0)))


def walk_tree_into_ledger(request: WalkRequest, ledger: UsageLedger, progress: Callable[[int], None]) -> None:
    """Count everything below `request.root`; `progress(inodes so far)` every second or so.

    File systems that are mounted below the root are not entered. Raises HyperpodKitError when the processes that look
    keep dying, Unreachable when they keep hanging, OSError when the root is no directory.
    """
    owner.run_as_owner_in_child_if_root(
        request.root, lambda: os.close(os.open(request.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    )
    if not ledger.resumed:
        ledger.add_task(WalkDirectory(request.root, 0, request.root, ""))
    ledger.commit()
    pool = _Pool(request, ledger)
    try:
        pool.run_until_done(progress)
    finally:
        pool.kill_all_workers()
    ledger.commit()


class _Worker:
    def __init__(self, config: str, careful: bool) -> None:
        self.careful = careful
        handle = os.memfd_create("usage")
        try:
            os.ftruncate(handle, scan.PAGE)
            self.where = scan.CurrentPath(handle)
            argv = [sys.executable, "-I", "-S", str(Path(scan.__file__)), str(handle)]
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(handle,))
        finally:
            os.close(handle)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.into, self.out = self.process.stdin, self.process.stdout
        self.task: int | None = None
        self._partial_line = b""
        self._last_progress: tuple[int, float] = (0, 0.0)
        self._progress_at = time.monotonic()
        self.send_line(config)

    def update_progress_and_is_hanging(self) -> bool:
        """Return whether the worker has a task and has shown no progress for HANG_SECONDS."""
        now, progress = time.monotonic(), owner.process_io_bytes_and_cpu_seconds(self.process.pid)
        if self.task is None or progress != self._last_progress:
            self._last_progress, self._progress_at = progress, now
        return now - self._progress_at > HANG_SECONDS

    def send_line(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # its end is seen where it is read
            self.into.write(line.encode() + b"\n")
            self.into.flush()

    def read_complete_lines(self) -> list[bytes] | None:
        """Read whole lines that have come; None at its end."""
        data = os.read(self.out.fileno(), 1 << 16)
        if not data:
            return None
        *complete, self._partial_line = (self._partial_line + data).split(b"\n")
        return complete

    def kill_and_close(self) -> None:
        self.process.kill()
        # It may hang in the kernel on a dead mount: that is not waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        self.where.close()
        self.out.close()
        with contextlib.suppress(BrokenPipeError):
            self.into.close()


class _Pool:
    def __init__(self, request: WalkRequest, ledger: UsageLedger) -> None:
        self._request = request
        self._unanswered: list[str] = []
        self._hangs = 0
        self._ledger = ledger
        self._selector = selectors.DefaultSelector()
        self._deaths = 0
        self._idle: list[_Worker] = []
        self._processes = request.process_count
        for _ in range(self._processes):
            self._start_worker()

    def _start_worker(self) -> None:
        worker = _Worker(self._render_config(), bool(self._unanswered))
        self._selector.register(worker.out, selectors.EVENT_READ, worker)
        self._idle.append(worker)

    def _render_config(self) -> str:
        """Make the configuration with the mounts of now; after a hang each entry is looked at with care, which takes
        three times as long."""
        root = self._request.root
        table = mountinfo.parse_mountinfo(mountinfo.read_mountinfo())
        config = {
            "root": root,
            "depth": self._request.depth,
            "marks": dict(self._request.marks),
            "elsewhere": [
                entry.path for entry in table if entry.path != root and mountinfo.is_same_or_below(entry.path, root)
            ],
            "unanswered": self._unanswered,
            "careful": bool(self._unanswered),
            "now": self._ledger.started_at,
        }
        return json.dumps(config)

    def kill_all_workers(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.kill_and_close()
        self._selector.close()

    def run_until_done(self, progress: Callable[[int], None]) -> None:
        committed = time.monotonic()
        while self._assign_tasks_and_is_busy():
            for key, _ in self._selector.select(COMMIT_SECONDS):
                self._record_parts_or_replace_dead_worker(key.data)
            for worker in [key.data for key in self._selector.get_map().values()]:
                if worker.update_progress_and_is_hanging():
                    self._replace_hung_worker(worker)
            if time.monotonic() - committed >= COMMIT_SECONDS:
                self._ledger.commit()
                progress(self._ledger.count_entries())
                committed = time.monotonic()

    def _assign_tasks_and_is_busy(self) -> bool:
        """Assign tasks to idle workers; return whether any worker still has one."""
        while self._idle:
            task = self._ledger.claim_task(BATCH, self._processes)
            if task is None:
                break
            worker = self._idle.pop()
            worker.task, directories = task
            limit = FIRST_LIMIT if self._idle else LIMIT
            worker.send_line(json.dumps({"id": worker.task, "directories": directories, "limit": limit}))
        return len(self._idle) < len(self._selector.get_map())

    def _record_parts_or_replace_dead_worker(self, worker: _Worker) -> None:
        lines = worker.read_complete_lines()
        if lines is None:
            self._replace_dead_worker(worker)
            return
        for line in lines:
            part = json.loads(line)
            assert worker.task is not None
            self._ledger.record_task_part(worker.task, part)
            if "end" in part:
                worker.task = None
                self._idle.append(worker)

    def _replace_hung_worker(self, worker: _Worker) -> None:
        """Leave one directory uncounted and go on with the walk."""
        path = worker.where.read()
        self._unanswered.append(path)
        # Whoever looks without care may all have come to what one user has mounted.
        self._hangs += worker.careful
        if self._hangs > MAX_HANGS:
            raise Unreachable(
                f"{self._request.root} does not answer: {path} gave no result for {HANG_SECONDS:.0f} s, nor did "
                f"{MAX_HANGS} others",
                hint="findmnt --list",
            )
        self._selector.unregister(worker.out)
        worker.kill_and_close()
        self._requeue_task_and_start_worker(worker)

    def _replace_dead_worker(self, worker: _Worker) -> None:
        self._selector.unregister(worker.out)
        worker.kill_and_close()
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            raise HyperpodKitError(
                f"the processes that read the files were killed: the last one ended with {worker.process.returncode}",
                hint="free memory, then repeat the command, which continues the count",
            )
        self._requeue_task_and_start_worker(worker)

    def _requeue_task_and_start_worker(self, worker: _Worker) -> None:
        if worker in self._idle:
            self._idle.remove(worker)
        if worker.task is not None:
            self._ledger.requeue_task_and_discard_parts(worker.task)
        self._start_worker()
