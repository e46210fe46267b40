"""Copy a slot to storage close behind its sealing: a chunk is written as soon as its leaf is computed.

The bytes go straight from the shared-memory mapping to the file, handed out in ascending order and the leaves last.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from dataclasses import dataclass, field
from typing import Callable, Iterator, List, Optional, Tuple

from hyperpod_kit.checkpoint.agent.persist import io_progress
from hyperpod_kit.checkpoint.agent.persist.seal import SlotShard
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.system.token_bucket import TokenBucket

WRITE = 16 * 1024 * 1024
"""Bytes a write. On the NVMe that this was tuned on, larger ones gain nothing and smaller ones cost 10 to 20 %."""

THREADS = 2
"""Writers of one file, where the storage takes ranges in any order: one prepares while the other's is on its way."""


class Stopped(CheckpointError):
    """Asked to stop before the file was complete; the slot is as it was."""


class Pace:
    """At most `limit` bytes a second (None: no limit) until `lift` is called."""

    def __init__(self, limit: Optional[float] = None) -> None:
        self._lifted = threading.Event()
        self._bytes = TokenBucket(limit, sleep=self._lifted.wait) if limit else None

    def lift(self) -> None:
        """No limit from now on: nobody trains any more, or the machine is about to go."""
        self._lifted.set()

    def wait_for_bytes(self, count: int) -> None:
        """Wait until `count` bytes may be written."""
        if self._bytes is not None and not self._lifted.is_set():
            self._bytes.wait_for_one_token_and_charge(count)


@dataclass(frozen=True)
class WriteOptions:
    """The circumstances of a write: whether it has lost its purpose, and how fast it may go."""

    stopped: Callable[[], bool] = lambda: False
    pace: Pace = field(default_factory=Pace)


def write_shard(
    shard: SlotShard, store: Store, checkpoint_id: str, options: Optional[WriteOptions] = None
) -> manifest.FileRecord:
    """Write the image as this rank's shard of `checkpoint_id`, durable. Returns its record.

    Raises Stopped, CheckpointError when the slot cannot be sealed, OSError (ENOSPC, EDQUOT, ESTALE, ...).
    """
    name, size = layout.shard_file(shard.page.origin.rank), shard.page.shard.size
    ranges = [(at, min(at + WRITE, size)) for at in range(0, size, WRITE)]
    write_file(store, f"{checkpoint_id}/{name}", size, ranges, shard.wait_and_view, options or WriteOptions())
    return manifest.FileRecord(name, size, shard.page.shard.root, shard.page.origin.rank)


def write_file(
    store: Store,
    name: str,
    size: int,
    ranges: List[Tuple[int, int]],
    read_range: Callable[[int, int], memoryview],
    options: WriteOptions,
) -> None:
    """Make the object `name` of `size` bytes from `read_range(begin, end)` of each of `ranges`, which are ascending.

    Raises Stopped, OSError, and what `read_range` raises; then there is no such object where the storage can avoid it.
    """
    failpoint("persist.begin")
    writer = store.open_write(name, size)

    def write_range(at: int, end: int) -> None:
        options.pace.wait_for_bytes(end - at)
        if options.stopped():
            raise Stopped(f"{name} stopped at byte {at}")
        writer.write(read_range(at, end), at)
        io_progress.record_progress()
        failpoint("persist.slice")

    try:
        _run_in_threads(iter(ranges), write_range, THREADS if store.capabilities.parallel_write else 1)
        failpoint("persist.before_sync")
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    failpoint("persist.done")


def _run_in_threads(ranges: Iterator[Tuple[int, int]], work: Callable[[int, int], None], threads: int) -> None:
    """`work` on each range, handed out in order to at most `threads` threads, this one included.

    Raises what the first failing range raised, after the others that had begun have ended. Without memory a new thread
    may die before it begins, and Thread.start() waits for its beginning for ever: so nobody waits for one that has not
    begun, and this thread does what is left.
    """
    changed = threading.Condition()
    errors: List[BaseException] = []
    working = 0

    def loop() -> None:
        while not errors:
            with changed:
                next_range = next(ranges, None)
            if next_range is None:
                return
            try:
                work(*next_range)
            except BaseException as err:
                errors.append(err)

    def extra_loop() -> None:
        nonlocal working
        with changed:
            working += 1
        try:
            loop()
        finally:
            with changed:
                working -= 1
                changed.notify_all()

    for _ in range(threads - 1):
        with contextlib.suppress(RuntimeError):  # no thread is to be had: it takes longer
            _thread.start_new_thread(extra_loop, ())
    loop()
    with changed:
        changed.wait_for(lambda: not working)
    if errors:
        raise errors[0]
