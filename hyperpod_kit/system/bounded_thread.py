"""A call in a thread, with a deadline: whoever waits for a mount or a server that does not answer goes on.

For jobs, trainers and the admin's machine, whose processes have threads, and for calls of which the result is an object
of this process. On a node without threads `bounded_child.py` has the stronger form; which is for whom is a table of
docs/design/architecture.md.

- Nobody can end a thread. One whose call does not come back is left behind: it keeps its stack, what the call holds
  and the files that it has open, until the kernel lets go of it.
- All are daemons: the end of the program does not wait for them. In D state they do keep the process from being gone.
- `start_in_thread` takes a thread for each call; its callers have one call under way, or ask seldom. `BoundedCalls` is
  for many calls to one mount: once MOST_THREADS of them hang, no more are sent, and each further call is CallUnanswered
  after its time.
- What the call raises is raised to whoever waits for it, as it is; what comes after that is dropped, or closed by
  `on_late_result`.
- A forked child has none of these threads. It makes BoundedCalls of its own.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import queue
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Callable, Optional, Tuple, TypeVar

T = TypeVar("T")

MOST_THREADS = 24
"""Threads of one BoundedCalls. When all of them wait in the kernel, no more are sent."""


class CallUnanswered(TimeoutError):
    """Nothing came back in time; what was called may still wait in the kernel."""


def start_in_thread(function: Callable[[], T], name: str) -> Future[T]:
    """Start a call in a thread of its own, which is called `name`."""
    call: Future[T] = Future()
    call.set_running_or_notify_cancel()
    threading.Thread(target=_execute, args=(call, function), daemon=True, name=name).start()
    return call


def result_within(call: Future[T], seconds: float) -> T:
    """Wait for the result of a call. Raises what it raised, CallUnanswered when it has not come after `seconds`."""
    try:
        return call.result(seconds)
    except FutureTimeout:
        if call.done():  # what it raised itself, or what has come just now
            return call.result()
        raise CallUnanswered(errno.ETIMEDOUT, f"no answer for {seconds:g} s") from None


class BoundedCalls:
    """The calls to one mount, each for `seconds` at most. Safe for threads, for one process."""

    def __init__(self, seconds: float, name: str, most_threads: int = MOST_THREADS) -> None:
        self.seconds = seconds
        self._name = name
        self._most_threads = most_threads
        self._waiting: queue.SimpleQueue[Tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._under_way = 0

    def start_call(self, function: Callable[[], T]) -> Future[T]:
        """Start a call without waiting for it."""
        call: Future[T] = Future()
        with self._lock:
            self._under_way += 1
            if self._under_way > self._threads and self._threads < self._most_threads:
                self._threads += 1
                threading.Thread(target=self._execute_calls_forever, name=self._name, daemon=True).start()
        self._waiting.put((call, function))
        return call

    def call(self, function: Callable[[], T], on_late_result: Optional[Callable[[T], object]] = None) -> T:
        """Call `function()` and return what it returns. `on_late_result` is called with a result that comes after
        nobody waits any more.

        Raises what it raises, CallUnanswered when it does not answer.
        """
        call = self.start_call(function)
        try:
            return result_within(call, self.seconds)
        except CallUnanswered:
            # One that no thread has begun is not made any more.
            if not call.cancel() and on_late_result is not None:
                self._pass_on_when_done(call, on_late_result)
            raise

    def _pass_on_when_done(self, call: Future[T], on_late_result: Callable[[T], object]) -> None:
        def start_passing_on(late: Future[T]) -> None:
            if late.exception() is None:
                # As a call of its own: this thread may be the one that has stopped waiting.
                self.start_call(lambda: on_late_result(late.result()))

        call.add_done_callback(start_passing_on)

    def _execute_calls_forever(self) -> None:
        while True:
            call, function = self._waiting.get()
            if call.set_running_or_notify_cancel():
                _execute(call, function)
            del call, function  # what was read is not kept for the next one
            with self._lock:
                self._under_way -= 1


def _execute(call: Future[T], function: Callable[[], T]) -> None:
    try:
        result = function()
    except BaseException as err:  # whoever waits for the call gets it
        call.set_exception(err)
    else:
        call.set_result(result)
