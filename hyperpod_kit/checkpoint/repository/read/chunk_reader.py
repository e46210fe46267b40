"""Read shards from front to back with several threads; no byte is handed on before its leaf was compared.

A `Pump` moves chunks through a ring of buffers. Reading begins before anybody knows where the bytes go (the header lies
in the first chunk); handing on begins with `finish`.
"""

from __future__ import annotations

import collections
import enum
import heapq
import os
import threading
from typing import Callable, Deque, Dict, List, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.read.stream import Buffer, Mapped, Shard, round_up_to_page

READERS = 2
"""Threads that only read: two keep a disk busy without a gap."""

Job = Tuple[Shard, int]
"""A shard and the number of one of its chunks."""

Chunk = Tuple[int, Buffer, memoryview]
"""A job's number, the buffer that is free again afterwards, and the bytes."""

Deliver = Callable[[Shard, int, memoryview], None]
"""deliver(shard, begin, view): the bytes from offset `begin` on. Called from several threads; must copy the view."""


class Ring:
    """The buffers of a pump: those that may be `free`, and those whose pages are not there yet. Who calls it holds the
    pump's lock."""

    def __init__(self, size: int, count: int, readers: int, enough: int) -> None:
        """`count` buffers of `size` bytes, of which `readers` begin; `enough` go round once it is known where to."""
        buffers = [Buffer(size) for _ in range(count)]
        self.free, self._cold = buffers[:readers], buffers[readers:]
        self._readers, self._spared, self._warming = readers, count - enough, 0

    def should_warm_buffer(self, is_delivering: bool) -> bool:
        """Return whether another buffer should be made ready, since the disk would otherwise rest for want of
        memory.

        Memory that a virtual machine touches for the first time comes at a fifth of the speed of its disk (0.4
        GB/s were seen), so no more is taken than needed: a few buffers that come back once their bytes are
        delivered, and all of them before `is_delivering`, while no destination is known.
        """
        few = len(self.free) + self._warming < self._readers
        return few and len(self._cold) > (max(0, self._spared) if is_delivering else 0)

    def take_cold_buffer(self) -> Buffer:
        """Remove and return a buffer whose pages are not there yet; give it back with `warmed` once they are."""
        self._warming += 1
        return self._cold.pop()

    def add_free_buffer(self, buffer: Buffer, *, warmed: bool = False) -> None:
        """Put a buffer among those that may be filled; `warmed`: it came from `take_cold_buffer`."""
        self._warming -= warmed
        self.free.append(buffer)


class Duty(enum.Enum):
    """What a worker does next."""

    WARM = "have the kernel find a buffer's pages, while the disk fills others"
    CHECK = "compare a chunk that was read"
    HAND_ON = "hand on a chunk that was compared earlier"
    END = "nothing any more"


class Pump:
    """Threads that fetch and check chunks at once, and hand them on when `finish` says where to.

    Readers only read, workers check and hand on. One thread for both would let the disk rest: requests that run side
    by side end together, and then every thread computes while none reads. A mapped shard needs workers only, and
    they compare all its chunks before `finish`: those need no buffer. Of others `ahead` bytes may be.

    Use it like this, so that no thread is left behind:

        with Pump(whole(shard)) as pump:
            head = pump.first()
            pump.finish(deliver)
    """

    def __init__(
        self, jobs: Sequence[Job], *, readers: int = READERS, workers: Optional[int] = None, ahead: int = 0
    ) -> None:
        self._jobs = list(jobs)
        mapped = all(isinstance(shard.source, Mapped) for shard, _ in self._jobs)
        workers = min(len(self._jobs), workers or max(1, min(8, len(os.sched_getaffinity(0)))))
        if mapped:
            readers = 0
        else:
            readers = min(len(self._jobs), readers)
        self._next = 0
        self._taken = 0
        self._state = threading.Condition()
        self._read: List[Chunk] = []  # a heap
        self._proved: Deque[Chunk] = collections.deque()  # compared before anybody said where to
        size = round_up_to_page(max((min(shard.chunk, shard.data_end) for shard, _ in self._jobs), default=0))
        # Made before any thread runs: mapping waits for whoever faults pages in, and holds the interpreter's lock.
        enough = readers + workers + 1
        count = 0
        if readers:
            count = max(enough, ahead // max(size, 1))
        self._ring = Ring(size, min(len(self._jobs), count), readers, enough)
        self._first: Optional[memoryview] = None
        self._deliver: Optional[Deliver] = None
        self._error: Optional[BaseException] = None
        self._stopped = False
        work = [self._reader_loop] * readers + [self._worker_loop if readers else self._mapped_worker_loop] * workers
        self._threads = [
            threading.Thread(target=self._run_and_stop_on_error, args=(target,), name=f"restore-{n}", daemon=True)
            for n, target in enumerate(work)
        ]
        with self._state:  # they begin together: a stack is a mapping too
            for thread in self._threads:
                thread.start()

    def __enter__(self) -> Pump:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop(None)
        for thread in self._threads:
            thread.join()

    def wait_for_first_chunk(self) -> memoryview:
        """Wait for the first job's chunk and return it, verified; it is valid until `finish`. Raise what a thread
        raised."""
        with self._state:
            self._state.wait_for(lambda: self._first is not None or self._error is not None)
            if self._error is not None:
                raise self._error
            assert self._first is not None
            return self._first

    def deliver_all_and_wait(self, deliver: Deliver) -> None:
        """Deliver every chunk through `deliver` and return when all are delivered. Raise what a thread raised; the
        rest is then not delivered."""
        with self._state:
            self._deliver = deliver
            self._state.notify_all()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def stop_and_return_verified(self) -> Dict[int, memoryview]:
        """Stop, in place of `finish`, and return the chunks that were read and verified by then, by the jobs'
        numbers. They are valid as long as the pump exists."""
        self._stop(None)
        for thread in self._threads:
            thread.join()
        return {number: view for number, _, view in self._proved}

    def _stop(self, error: Optional[BaseException]) -> None:
        with self._state:
            self._error = self._error or error
            self._stopped = True
            self._state.notify_all()

    def _run_and_stop_on_error(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as err:
            self._stop(err)

    def _claim_next_job(self) -> Optional[int]:
        """Claim the number of the next job; None when there is none. The caller holds the lock."""
        if self._stopped or self._next == len(self._jobs):
            return None
        self._next += 1
        return self._next - 1

    def _reader_loop(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: bool(self._stopped or self._ring.free))
                number = self._claim_next_job()
                if number is None:
                    return
                buffer = self._ring.free.pop()
                self._state.notify_all()  # the next one is to be made ready
            shard, index = self._jobs[number]
            view = shard.fetch_unverified_chunk(index, buffer)
            with self._state:
                heapq.heappush(self._read, (number, buffer, view))
                self._state.notify_all()

    def _worker_loop(self) -> None:
        while True:
            with self._state:
                duty = self._state.wait_for(self._choose_duty_if_any)
                if duty is Duty.END:
                    return
                if duty is Duty.WARM:
                    buffer = self._ring.take_cold_buffer()
                elif duty is Duty.HAND_ON:
                    number, buffer, view = self._proved.popleft()
                else:
                    number, buffer, view = heapq.heappop(self._read)
                    self._taken += 1
            if duty is Duty.WARM:
                buffer.fault_in()
            elif duty is Duty.HAND_ON or self._verify_and_queue_if_early(number, buffer, view):
                self._deliver_chunk(number, view)
            else:
                continue
            with self._state:
                self._ring.add_free_buffer(buffer, warmed=duty is Duty.WARM)
                self._state.notify_all()

    def _choose_duty_if_any(self) -> Optional[Duty]:
        """What a worker does next; None: nothing yet. The caller holds the lock."""
        is_delivering = self._deliver is not None
        if self._stopped:
            return Duty.END
        if is_delivering and self._proved:
            return Duty.HAND_ON
        # The first chunk may arrive after later ones. It goes first, for the caller waits for it before `finish`.
        if self._read and self._taken == 0 and self._read[0][0] == 0:
            return Duty.CHECK
        if self._next < len(self._jobs) and self._ring.should_warm_buffer(is_delivering):
            return Duty.WARM
        if self._read and self._taken > 0:
            return Duty.CHECK
        if is_delivering and self._taken == len(self._jobs):
            return Duty.END
        return None

    def _mapped_worker_loop(self) -> None:
        nothing = Buffer(0)
        while True:
            with self._state:
                proved = self._deliver is not None and bool(self._proved)
                number: Optional[int]
                if proved:
                    number = self._proved.popleft()[0]
                else:
                    number = self._claim_next_job()
                if number is None and self._deliver is None and not self._stopped:
                    self._state.wait_for(lambda: self._deliver is not None or self._stopped)
                    continue
            if number is None:
                return
            shard, index = self._jobs[number]
            view = shard.fetch_unverified_chunk(index, None)
            if (proved or self._verify_and_queue_if_early(number, nothing, view)) and not self._stopped:
                self._deliver_chunk(number, view)

    def _verify_and_queue_if_early(self, number: int, buffer: Buffer, view: memoryview) -> bool:
        """Verify a chunk and return whether it can be delivered now; if not, queue it until `finish` says where to.
        Raise DigestMismatch when it is damaged."""
        shard, index = self._jobs[number]
        shard.verify_chunk(index, view)
        with self._state:
            if number == 0:
                self._first = view
                self._state.notify_all()
            if self._deliver is None:
                self._proved.append((number, buffer, view))
            return self._deliver is not None

    def _deliver_chunk(self, number: int, view: memoryview) -> None:
        shard, index = self._jobs[number]
        assert self._deliver is not None
        self._deliver(shard, shard.chunk_bounds(index)[0], view)


def all_chunks(shard: Shard) -> List[Job]:
    """Return the job of every chunk of a shard, in order."""
    return [(shard, index) for index in range(shard.chunks)]
