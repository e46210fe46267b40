"""Copies between host memory with several threads, made so that a save costs what the memory's bandwidth costs.

Two ways to move bytes, both without the interpreter's lock. glibc's memmove streams past the cache only above a size
that depends on the machine (about 3/4 of the last-level cache; below it `rep movsb`, which reads each line before it
writes it), so it is used for large pieces that are cut no smaller than that; the pieces in between go through a
vectorised loop of numpy. Small ones are grouped.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.checkpoint.transfer import tensor_memory

STREAM = 32 * 1024 * 1024  # bytes from which memmove streams on the machines that were looked at
_CUT = 8 * 1024 * 1024  # vectorised pieces are cut to this, so that all threads end at about the same time
_GROUP = 4 * 1024 * 1024
_VECTOR = 64 * 1024
_MAX_THREADS = 8  # more threads than this do not raise the bandwidth of one socket

# A call is a function and its arguments; a batch is what one thread does before it asks for more.
Batch = list[tuple[Callable[..., Any], tuple[Any, ...]]]


class TensorCopy(NamedTuple):
    """Copy the elements of `source`, in order, to the host memory that begins at the address `target`."""

    target: int
    source: torch.Tensor


ViewOfTarget = Callable[[TensorCopy], torch.Tensor]
"""The memory that a copy goes to, as a tensor of its source's type and shape."""


def copy_threads(ranks_here: int) -> int:
    """Return how many threads one of `ranks_here` ranks of this machine may use to copy."""
    return max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) // max(1, ranks_here)))


def cut_and_group_into_batches(copies: Sequence[TensorCopy], view_of_target: ViewOfTarget) -> list[Batch]:
    """Cut and group copies into batches for several threads, large ones first. They hold addresses:
    keep the tensors and the targets' memory alive.

    `view_of_target` is called for sources that lie on a device or whose memory is not their elements in order.
    """
    large: list[Batch] = []
    batch: Batch = []
    rest: list[Batch] = []
    room = _GROUP
    for copy in sorted(copies, key=lambda copy: -copy.source.nbytes):
        target, source = copy
        size = source.nbytes
        if source.device.type != "cpu" or not tensor_memory.is_contiguous_without_flags(source):
            rest.append([(torch.Tensor.copy_, (view_of_target(copy), source))])
            continue
        for call, length in _split_into_copy_calls(target, source.data_ptr(), size):
            if length >= _GROUP:
                large.append([call])
                continue
            if length > room and batch:
                rest.append(batch)
                batch, room = [], _GROUP
            batch.append(call)
            room -= length
    if batch:
        rest.append(batch)
    return large + rest


def _split_into_copy_calls(
    target: int, source: int, size: int
) -> list[tuple[tuple[Callable[..., Any], tuple[Any, ...]], int]]:
    if size < _VECTOR:  # before all other questions: a state may have thousands of these
        return [((ctypes.memmove, (target, source, size)), size)]
    numpy = sys.modules.get("numpy")
    vector = numpy is not None and not (target | source) % 8
    if not vector or size >= 2 * STREAM:
        count = max(1, size // STREAM)
        edges = [size * n // count // 4096 * 4096 for n in range(count)] + [size]
        return [((ctypes.memmove, (target + a, source + a, b - a)), b - a) for a, b in itertools.pairwise(edges)]
    count = -(-size // _CUT)
    edges = [size * n // count // 4096 * 4096 for n in range(count)] + [size // 8 * 8]
    out: list[tuple[tuple[Callable[..., Any], tuple[Any, ...]], int]] = [
        ((numpy.positive, (_memory_as_u64_array(source + a, b - a), _memory_as_u64_array(target + a, b - a))), b - a)  # type: ignore[union-attr]
        for a, b in itertools.pairwise(edges)
    ]
    end = edges[-1]
    if end < size:
        out.append(((ctypes.memmove, (target + end, source + end, size - end)), size - end))
    return out


def copy_memory(target: int, source: int, size: int) -> None:
    """Copy `size` bytes between two addresses now, in this thread, the faster way for that size."""
    for (function, arguments), _ in _split_into_copy_calls(target, source, size):
        function(*arguments)


def _memory_as_u64_array(address: int, size: int) -> Any:
    """Return memory as an array of u64; `positive` of an unsigned integer is the integer itself."""
    import numpy

    return numpy.ctypeslib.as_array((ctypes.c_uint64 * (size // 8)).from_address(address))


class CopyRun:
    """One run over a list of batches by whoever helps. `then` is called once, by the thread that ends last."""

    def __init__(self, batches: Sequence[Batch], then: Callable[[BaseException | None], None] | None = None) -> None:
        self._batches = batches
        self._next = itertools.count()
        self._remaining = itertools.count(len(batches) - 1, -1)
        self._then = then
        self._error: BaseException | None = None
        self._ended = threading.Event()
        if not batches:
            self._call_then_and_mark_ended()

    def run_batches(self) -> None:
        """Run batches in this thread until none is left to start; never raises."""
        while (number := next(self._next)) < len(self._batches):
            if self._error is None:
                try:
                    for function, arguments in self._batches[number]:
                        function(*arguments)
                    failpoint("capture.tensor")
                except BaseException as err:
                    self._error = err
            if next(self._remaining) == 0:
                self._call_then_and_mark_ended()

    def _call_then_and_mark_ended(self) -> None:
        try:
            if self._then is not None:
                self._then(self._error)
        except BaseException as err:
            self._error = self._error or err
        self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def help_and_wait(self) -> None:
        """Run remaining batches in this thread, then wait for the other threads. Raises the first error of
        any thread."""
        self.run_batches()
        self._ended.wait()
        if self._error is not None:
            raise self._error


class Copier:
    """`threads - 1` waiting threads, at least one: the caller of `CopyRun.help_and_wait` is the last."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._queue: queue.SimpleQueue[CopyRun | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(
        self,
        batches: Sequence[Batch],
        then: Callable[[BaseException | None], None] | None = None,
        *,
        background: bool = False,
    ) -> CopyRun:
        """Begin; the caller goes on and must call `help_and_wait` on what it gets. `background`: even with
        one thread."""
        run = CopyRun(batches, then)
        helpers = min(max(self.threads - 1, int(background)), len(batches))
        while len(self._threads) < helpers:
            self._threads.append(
                threading.Thread(target=self._run_queued_copies, daemon=True, name=f"hpk-copy-{len(self._threads)}")
            )
            self._threads[-1].start()
        for _ in range(helpers):
            self._queue.put(run)
        return run

    def _run_queued_copies(self) -> None:
        while (run := self._queue.get()) is not None:
            run.run_batches()

    def close(self, seconds: float = 0.0) -> None:
        """End the threads once they have done what was begun; wait for that, `seconds` at most."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        end = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
