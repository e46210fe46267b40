"""A process that writes files is held to a rate, which s5cmd has no option for: it is stopped while it is ahead."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

_LOOK = 0.05


class HeldRate:
    """Holds process `pid` to `rate` bytes a second of what comes into the directory `parts`, from enter to exit."""

    def __init__(self, pid: int, parts: str, rate: float) -> None:
        self._pid = pid
        self._parts = parts
        self._rate = rate
        self._begun = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> HeldRate:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._send(signal.SIGCONT)

    def ended(self, size: int) -> None:
        """The process has brought so many bytes; returns when they were due, however fast they came."""
        self._end.wait(self._ahead(size))

    def _ahead(self, size: int) -> float:
        """Seconds by which so many bytes came too early."""
        return max(0.0, size / self._rate - (time.monotonic() - self._begun))

    def _watch(self) -> None:
        seen: dict[int, int] = {}
        came = 0
        while not self._end.wait(_LOOK):
            there = sizes(self._parts)
            # A file that is proved meanwhile is taken away: what it grew by before counts all the same.
            came += sum(max(0, size - seen.get(name, 0)) for name, size in there.items())
            seen = there
            ahead = self._ahead(came)
            if ahead > 0:
                self._send(signal.SIGSTOP)
                self._end.wait(ahead)
                self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)


def sizes(directory: str) -> dict[int, int]:
    """Bytes on disk of each file in a directory, by its number in the file system: names change as files are whole."""
    found = {}
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                facts = entry.stat()
                # A file that comes in parts has holes.
                found[facts.st_ino] = min(facts.st_size, facts.st_blocks * 512)
    return found
