"""The agent's long work, in threads of its own: what each job returns, or why it failed, becomes an event."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from typing import Any, Callable, NamedTuple, Optional, Tuple, TypeVar

from hyperpod_kit.checkpoint.agent.persist import io_progress
from hyperpod_kit.checkpoint.agent.process.agent_events import Event, JobResult
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.errors import CheckpointError

Post = Callable[[Event], None]
Value = TypeVar("Value")
Result = Callable[[Key, Optional[Value], str, int], JobResult]
"""The class of a job's result."""


class Worker:
    """One thread that does jobs in their order."""

    def __init__(self, name: str, post: Post) -> None:
        self._jobs: queue.SimpleQueue[Tuple[Result[Any], Key, Callable[[], Any]]] = queue.SimpleQueue()
        self._post = post
        self.name = name
        self._submitted = self._done = 0
        threading.Thread(target=self._loop, daemon=True, name=name).start()

    def submit(self, result_type: Result[Value], key: Key, job: Callable[[], Value]) -> None:
        """Queue `job`; post `result_type` of (key, what it returned, "", 0), or of (key, None, why it failed, the
        errno), once it has run."""
        if not self.busy:
            io_progress.record_progress()  # time without work is no standstill
        self._submitted += 1
        self._jobs.put((result_type, key, job))

    @property
    def busy(self) -> bool:
        """Whether a job is being done or waits. Asked by the thread that submits."""
        return self._submitted > self._done

    def _finish_job(self) -> None:
        self._done += 1
        io_progress.record_progress()

    def _loop(self) -> None:
        while True:
            result, key, job = self._jobs.get()
            try:
                returned = job()
                self._finish_job()
                self._post(result(key, returned, "", 0))
            except (CheckpointError, OSError) as err:
                self._finish_job()
                self._post(result(key, None, verify.describe_failure(err), getattr(err, "errno", None) or 0))
            except Exception as err:
                # A save whose thread died would have no end: a defect must become a visible failure, too.
                traceback.print_exc()
                sys.stderr.flush()
                self._finish_job()
                self._post(result(key, None, f"{type(err).__name__}: {err}", 0))


class Workers(NamedTuple):
    """An agent's threads: digests, writes from memory, uploads from the node's disk, and what nobody waits for."""

    sealer: Worker
    writer: Worker
    uploader: Worker
    chores: Worker

    @staticmethod
    def start(post: Post) -> Workers:
        return Workers(*(Worker(name, post) for name in ("seal", "write", "upload", "chores")))
