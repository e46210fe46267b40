"""A process that writes files is held to a rate, which s5cmd has no option for: it is stopped while it is ahead."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

_POLL_SECONDS = 0.05


class ProcessThrottle:
    """Holds process `pid` to `rate` bytes a second of what comes into the directory `parts`, from enter to exit."""

    def __init__(self, pid: int, parts: str, rate: float) -> None:
        self._pid = pid
        self._parts = parts
        self._rate = rate
        self._started_at = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._pause_process_while_ahead, daemon=True)

    def __enter__(self) -> ProcessThrottle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._send_signal(signal.SIGCONT)

    def sleep_until_bytes_are_due(self, total_bytes: int) -> None:
        """Wait until the time at which so many bytes are due at the rate."""
        self._end.wait(self._seconds_ahead(total_bytes))

    def _seconds_ahead(self, total_bytes: int) -> float:
        """Compute by how many seconds so many bytes came too early."""
        return max(0.0, total_bytes / self._rate - (time.monotonic() - self._started_at))

    def _pause_process_while_ahead(self) -> None:
        previous: dict[int, int] = {}
        arrived = 0
        while not self._end.wait(_POLL_SECONDS):
            current = sizes_on_disk_by_inode(self._parts)
            # A file that is proved meanwhile is taken away: what it grew by before counts all the same.
            arrived += sum(max(0, size - previous.get(name, 0)) for name, size in current.items())
            previous = current
            ahead = self._seconds_ahead(arrived)
            if ahead > 0:
                self._send_signal(signal.SIGSTOP)
                self._end.wait(ahead)
                self._send_signal(signal.SIGCONT)

    def _send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)


def sizes_on_disk_by_inode(directory: str) -> dict[int, int]:
    """Measure the bytes on disk of each file in a directory, by inode: names change as files are whole."""
    sizes_by_inode = {}
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                facts = entry.stat()
                # A file that comes in parts has holes.
                sizes_by_inode[facts.st_ino] = min(facts.st_size, facts.st_blocks * 512)
    return sizes_by_inode
