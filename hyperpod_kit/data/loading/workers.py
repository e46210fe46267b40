"""Batches of torch's worker processes, watched: workers that die or stand still are replaced, in order."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from multiprocessing import connection
from typing import Any, Protocol

from hyperpod_kit.errors import DataError, DataUnavailable, HyperpodKitError, first_line

log = logging.getLogger("hyperpod_kit.data")

MAX_FAILURES = 3
"""In a row, without a batch in between."""

POLL_SECONDS = 1.0
"""Seconds after which torch is to say that it still waits: only then it looks whether its workers live."""

_WORKER_LOST = re.compile(r"DataLoader worker \(pid|DataLoader timed out|Pin memory thread exited")
_TIMED_OUT = "DataLoader timed out"
_RAISED_THERE = re.compile(r"Caught \w+ in DataLoader worker process")
"""How torch begins an error that the data set raised in a worker."""


class WorkerStart:
    """What a worker does first: it sees to it that it ends with the process it works for, then calls `then`.

    torch's worker notes whose child it is when it has started; one whose parent was killed before that waits for ever.
    """

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._parent = os.getpid()
        self._then = then

    def __call__(self, number: int) -> None:
        threading.Thread(target=self._exit_when_parent_is_gone, daemon=True).start()
        if self._then is not None:
            self._then(number)

    def _exit_when_parent_is_gone(self) -> None:
        while os.getppid() == self._parent:
            time.sleep(POLL_SECONDS)
        os._exit(1)


class StartBatches(Protocol):
    """Starts an iterator over what the trainer has not received, from the position on; `anew`: by other workers than
    before."""

    def __call__(self, *, anew: bool) -> Iterator[Any]: ...


def batches_replacing_failed_workers(start: StartBatches, *, keep_workers: bool, stuck_after: float) -> Iterator[Any]:
    """Yield the batches of `start`, starting it again with new workers where they die or are stuck.

    `keep_workers`: workers stay for the next epoch. `stuck_after`: seconds without a batch after which they are
    replaced.

    Raises what the data set raises, DataUnavailable when workers die or stand still again and again.
    """
    failures = 0
    while True:
        batches = start(anew=failures > 0)
        _unregister_workers_from_sigchld(batches)
        _kill_all_workers_when_one_dies(batches)
        broken = not keep_workers
        try:
            while True:
                try:
                    received = _wait_for_next_batch(batches, stuck_after)
                except StopIteration:
                    return
                failures = 0
                yield received
        except HyperpodKitError as err:
            raise _without_stack_trace(err) from None
        except Exception as err:
            # Whatever a message of a worker that was killed is read as: half of it, or of a tensor that lay with it.
            if not _is_worker_failure(err, batches):
                raise
            broken = True
            failures += 1
            reason = first_line(err)
            if failures > MAX_FAILURES:
                raise DataUnavailable(
                    f"the loader's workers failed {failures} times in a row without a batch: {reason}",
                    hint="use num_workers=0 to see the error itself",
                ) from err
            log.warning(
                "%s: replacing the workers (%d in a row) and requesting the same batches again", reason, failures
            )
        finally:
            if broken:
                _kill_workers_and_stop_iterator(batches)


def _wait_for_next_batch(batches: Iterator[Any], stuck_after: float) -> Any:
    """Wait for the next batch as long as workers live, `stuck_after` seconds at most."""
    started_at = time.monotonic()
    while True:
        try:
            return next(batches)
        except RuntimeError as err:
            if not str(err).startswith(_TIMED_OUT) or time.monotonic() - started_at >= stuck_after:
                raise


def _unregister_workers_from_sigchld(batches: Any) -> None:
    """Remove the workers from the processes that torch's handler of SIGCHLD looks at.

    It would raise in the middle of whatever the trainer does. A worker's death is seen when its batch is waited for.
    """
    with contextlib.suppress(ImportError, AttributeError):
        signal_handling: Any = import_module("torch.utils.data._utils.signal_handling")
        if getattr(batches, "_worker_pids_set", False):
            signal_handling._remove_worker_pids(id(batches))
            batches._worker_pids_set = False


def _is_worker_failure(err: Exception, batches: Any) -> bool:
    """Whether an error came of a worker's death or silence, and not of the data set."""
    workers = getattr(batches, "_workers", ())
    if not workers or _RAISED_THERE.match(str(err)):
        return False
    if isinstance(err, RuntimeError) and _WORKER_LOST.search(str(err)):
        return True
    # A socket of a process that is killed is closed a moment before the process has ended.
    return bool(connection.wait([worker.sentinel for worker in workers], POLL_SECONDS))


def _kill_all_workers_when_one_dies(batches: Any) -> None:
    """Start a thread that kills the other workers when one dies; close this process's end of their pipe.

    They send by one pipe. A worker that is killed may leave half a message in it, or hold its lock, and a reader
    waits for the rest until the last process that may write is gone, so this one must not be one of those either.
    """
    workers = getattr(batches, "_workers", ())
    if not workers or getattr(batches, "_hpk_watched", False):
        return
    batches._hpk_watched = True
    if not getattr(batches, "_pin_memory", False):  # the thread that pins is ended by a message of this process
        with contextlib.suppress(AttributeError, OSError):
            batches._worker_result_queue._writer.close()
    watcher = threading.Thread(
        target=_kill_workers_after_first_death, args=(weakref.ref(batches), list(workers)), daemon=True
    )
    watcher.start()


def _kill_workers_after_first_death(batches: weakref.ref[Any], workers: list[Any]) -> None:
    connection.wait([worker.sentinel for worker in workers])
    iterator = batches()
    if iterator is None or iterator._shutdown:
        return  # they were asked to end
    _replace_done_event(iterator)
    del iterator
    _kill_workers(workers)


def _kill_workers(workers: Iterable[Any]) -> None:
    for worker in workers:
        with contextlib.suppress(ValueError, AttributeError, OSError):
            worker.kill()


def _replace_done_event(iterator: Any) -> None:
    """Give an iterator an event of its own in place of the one by which it asks its workers to end.

    A worker that was killed while it looked at that one holds its lock for ever, and who sets it waits as long.
    """
    if hasattr(iterator, "_workers_done_event"):
        iterator._workers_done_event = threading.Event()


def _kill_workers_and_stop_iterator(batches: Any) -> None:
    """Stop an iterator; workers that were stopped or hang would keep it waiting."""
    iterator: Any = batches
    _kill_workers(getattr(iterator, "_workers", ()))
    _replace_done_event(iterator)
    with contextlib.suppress(AttributeError, OSError, EOFError):
        iterator._shutdown_workers()


def _without_stack_trace(err: HyperpodKitError) -> HyperpodKitError:
    """Return the error as the worker raised it, without the stack trace that torch writes into its message."""
    name = f"{type(err).__name__}: "
    if not isinstance(err, DataError) or "Caught " not in err.message or name not in err.message:
        return err
    return type(err)(err.message.rpartition(name)[2].strip())
