"""Read every byte once: what caches what it reads (Mountpoint with --cache, S3 Files, a Lustre import) has it then."""

from __future__ import annotations

import errno
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Callable, Iterator, Optional, Sequence

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.storage.preload.files import PreloadFile, open_file

BLOCK = 4 << 20


class PreloadPace:
    """Limits all threads together to a rate, in bytes a second; None: no limit."""

    def __init__(self, rate: Optional[float], clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = Lock()
        self._free_at = clock()

    def wait_for_allowance(self, byte_count: int) -> None:
        """Wait until these bytes may have been read."""
        if not self._rate:
            return
        with self._lock:
            self._free_at = max(self._free_at, self._clock()) + byte_count / self._rate
            wait = self._free_at - self._clock()
        if wait > 0:
            self._sleep(wait)


def read_files_through(
    files: Sequence[PreloadFile],
    progress: Callable[[int], None],
    *,
    on_finished: Callable[[str, str], None] = lambda path, reason: None,
    workers: int = 16,
    rate: Optional[float] = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, str]:
    """Read files whole; returns path -> why it is not whole.

    `progress(bytes so far)`; `on_finished(path, reason)` of each, without a reason for one that is whole; `rate`:
    bytes a second. Other threads go on.
    """
    pace, lock = PreloadPace(rate, clock, sleep), Lock()
    failed: dict[str, str] = {}
    so_far = 0

    def read_file(file: PreloadFile) -> None:
        nonlocal so_far
        reason = ""
        try:
            for count in _read_blocks_yielding_sizes(file):
                pace.wait_for_allowance(count)
                with lock:
                    so_far += count
                    progress(so_far)
        except (OSError, Untrusted) as err:
            reason = getattr(err, "strerror", None) or str(err)
        with lock:
            if reason:
                failed[file.path] = reason
            on_finished(file.path, reason)

    # The largest first: a large one that begins last would be waited for alone.
    with ThreadPoolExecutor(workers, thread_name_prefix="preload") as pool:
        list(pool.map(read_file, sorted(files, key=lambda file: -file.size)))
    return failed


def _read_blocks_yielding_sizes(file: PreloadFile) -> Iterator[int]:
    """Read one file; yields the sizes of its blocks. Raises OSError, also when it ends before its size, Untrusted."""
    descriptor = open_file(file)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file any more")
        buffer, at = bytearray(min(BLOCK, max(file.size, 1))), 0
        while at < file.size:
            count = os.preadv(descriptor, [buffer], at)
            if not count:
                raise OSError(errno.EIO, f"it ends at {at:,} of {file.size:,} bytes")
            at += count
            yield count
    finally:
        os.close(descriptor)
