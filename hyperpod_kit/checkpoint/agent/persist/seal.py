"""Seal a captured slot: compute its leaves into the image's tail, then its root into the control page.

Whoever writes the slot to storage may follow close behind: it waits for the leaf of a chunk and then writes the chunk.
"""

from __future__ import annotations

import os
import threading
from typing import Callable, Iterator, Optional

from hyperpod_kit.checkpoint.agent.persist import io_progress
from hyperpod_kit.checkpoint.agent.shm.control_page import COMPLETE_STATES, Page, SlotState
from hyperpod_kit.checkpoint.agent.shm.shm_slots import Slot
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import CheckpointError


def _thread_count(algorithm: str) -> int:
    """xxh3 is several times faster than storage, so training keeps its cores; blake2b needs all that it can get."""
    cores = os.cpu_count() or 1
    return max(1, min(4, cores // 2 if algorithm == "xxh3" else cores))


class SlotShard:
    """The shard in a captured slot. `seal` computes its digests in one thread (and its pool), `wait_until_final` waits
    in others."""

    def __init__(self, slot: Slot) -> None:
        """Raises CheckpointError when the slot holds no capture."""
        page = slot.page
        if page is None or page.state not in COMPLETE_STATES:
            raise CheckpointError(f"{slot.name.file('img')} holds no capture")
        self.slot = slot
        self.page = page
        self._data_end = digest.split_size_into_data_and_leaf_count(page.shard.size, page.shard.chunk)[0]
        if page.state == SlotState.SEALED:
            self._final_end = page.shard.size
        else:
            self._final_end = 0
        self._failure: Optional[str] = None
        self._changed = threading.Condition()

    def seal(self) -> Page:
        """Compute what is missing; returns at once for a sealed slot. Raises CheckpointError, DigestUnavailable."""
        try:
            if self.page.state != SlotState.SEALED:
                self.page = self._seal()
        except BaseException as err:
            with self._changed:
                self._failure = str(err) or type(err).__name__
                self._changed.notify_all()
            raise
        return self.page

    def _seal(self) -> Page:
        page, image, end = self.page, self.slot.image, self._data_end
        alg = digest.algorithm(page.shard.digest)
        starts = range(0, end, page.shard.chunk)

        def leaf(at: int) -> bytes:
            return alg.leaf(image[at : min(at + page.shard.chunk, end)])

        leaf_offset = end
        for at, leaf_digest in zip(starts, _map_in_order(leaf, starts, _thread_count(page.shard.digest))):
            image[leaf_offset : leaf_offset + digest.LEAF_BYTES] = leaf_digest
            leaf_offset += digest.LEAF_BYTES
            failpoint("seal.leaf")
            self._publish_final_end(min(at + page.shard.chunk, end))
        failpoint("seal.before_page")
        root = digest.root_digest(alg, bytes(image[end : page.shard.size]), page.shard.size)
        sealed = self.slot.seal(root)
        failpoint("seal.after_page")
        self._publish_final_end(page.shard.size)
        return sealed

    def _publish_final_end(self, upto: int) -> None:
        io_progress.record_progress()
        with self._changed:
            self._final_end = upto
            self._changed.notify_all()

    def wait_and_view(self, begin: int, end: int) -> memoryview:
        """Wait until these bytes of the file are final, and return a view of them. Raises as `wait_until_final`."""
        self.wait_until_final(end)
        return self.slot.image[begin:end]

    def wait_until_final(self, end: int) -> None:
        """Wait until the file's first `end` bytes are final. Raises CheckpointError when they will never be.

        The leaves are final when the control page says SEALED, which is last.
        """
        if end <= self._data_end:
            required = end
        else:
            required = self.page.shard.size
        with self._changed:
            self._changed.wait_for(lambda: self._final_end >= required or self._failure is not None)
            if self._final_end < required:
                raise CheckpointError(f"not sealed: {self._failure}")


def _map_in_order(work: Callable[[int], bytes], items: range, threads: int) -> Iterator[bytes]:
    """`map` with a few threads; results in order, each as soon as it and those before it are there."""
    if threads <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    from concurrent.futures import ThreadPoolExecutor  # not at the start of each program: it brings logging

    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, items)


def seal(slot: Slot) -> Page:
    """Seal the whole slot now. Raises CheckpointError when it is not captured, DigestUnavailable."""
    if slot.page is not None and slot.page.state != SlotState.CAPTURED:
        raise CheckpointError(f"{slot.name.file('img')} holds no capture")
    return SlotShard(slot).seal()
