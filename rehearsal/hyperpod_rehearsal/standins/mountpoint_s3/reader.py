"""Reading an object: ranges that grow while reads are sequential, one of them ahead."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import Executor, Future
from typing import List, NamedTuple

from hyperpod_rehearsal.standins.fuse.session import Refusal
from hyperpod_rehearsal.standins.mountpoint_s3.client import ObjectHead, S3Client, S3Failure

FIRST_RANGE = 1 << 20
MAX_RANGES = 4
"""Ranges held per open file: the kernel's read-ahead threads arrive a little out of order."""


class _Range(NamedTuple):
    start: int
    end: int
    data: Future[bytes]


class ObjectReader:
    """An open object, pinned to the version that was opened. Safe for threads."""

    def __init__(self, client: S3Client, pool: Executor, key: str, head: ObjectHead, largest: int) -> None:
        """largest: bytes of the longest range that is fetched."""
        self._client = client
        self._pool = pool
        self._key = key
        self._head = head
        self._largest = largest
        self._lock = threading.Lock()
        self._ranges: List[_Range] = []
        self._size = FIRST_RANGE

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes. Raises Refusal: ESTALE when the object was replaced, EIO when S3 fails."""
        end = min(offset + size, self._head.size)
        pieces = []
        while offset < end:
            current = self._fetch_range_and_prefetch_next(offset)
            try:
                data = current.data.result()
            except S3Failure as err:
                with self._lock:
                    self._ranges = [item for item in self._ranges if item is not current]
                if err.status == 412:
                    number = errno.ESTALE
                else:
                    number = errno.EIO
                raise Refusal(number, f"get request failed for {self._key}: {err}") from None
            piece = data[offset - current.start : end - current.start]
            if not piece:
                raise Refusal(errno.EIO, f"get request for {self._key} brought fewer bytes than asked for")
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def _fetch_range_and_prefetch_next(self, offset: int) -> _Range:
        """The range that holds the byte at `offset`, fetched if need be; the next one is fetched ahead."""
        with self._lock:
            current = next((item for item in self._ranges if item.start <= offset < item.end), None)
            if current is None:
                last = max((item.end for item in self._ranges), default=0)
                if offset != last:
                    self._size = FIRST_RANGE  # a jump: nothing is known about what comes next
                current = self._start_fetch(offset)
            newest = max(item.end for item in self._ranges)
            if current.end == newest and newest < self._head.size and self._is_sequential(current, offset):
                self._size = min(self._size * 2, self._largest)
                self._start_fetch(newest)
            del self._ranges[:-MAX_RANGES]
            return current

    def _is_sequential(self, current: _Range, offset: int) -> bool:
        """Whether reading has gone on from the start of the object, from another range, or deep into this one."""
        return current.start == 0 or offset > current.start or any(item.end == current.start for item in self._ranges)

    def _start_fetch(self, start: int) -> _Range:
        end = min(start + self._size, self._head.size)
        future = self._pool.submit(self._client.get, self._key, start, end - 1, self._head.etag)
        made = _Range(start, end, future)
        self._ranges.append(made)
        return made
