"""The agent's long work, in threads of its own: what each job returns, or why it failed, becomes an event."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from typing import Any, Callable, Tuple

from hyperpod_kit.errors import CheckpointError

from . import verify
from .control import Key

Post = Callable[[Tuple[Any, ...]], None]


class Worker:
    """One thread that does jobs in their order."""

    def __init__(self, name: str, post: Post) -> None:
        self._jobs: queue.SimpleQueue[Tuple[str, Key, Callable[[], Any]]] = queue.SimpleQueue()
        self._post = post
        threading.Thread(target=self._loop, daemon=True, name=name).start()

    def submit(self, event: str, key: Key, job: Callable[[], Any]) -> None:
        """Do `job` some time; post (event, key, what it returned, "") or (event, key, None, why it failed)."""
        self._jobs.put((event, key, job))

    def _loop(self) -> None:
        while True:
            event, key, job = self._jobs.get()
            try:
                self._post((event, key, job(), ""))
            except (CheckpointError, OSError) as err:
                self._post((event, key, None, verify.reason_of(err)))
            except Exception as err:
                # A save whose thread died would have no end: a defect must become a visible failure, too.
                traceback.print_exc()
                sys.stderr.flush()
                self._post((event, key, None, f"{type(err).__name__}: {err}"))
