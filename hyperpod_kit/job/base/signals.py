"""Signals of a batch script as conditions that can be waited for: no polling, and no work inside a handler.

TERM, INT   scancel, the end of a grace period, or Slurm ending a run that it requeued: stop, never requeue
USR1        the warning of --signal=B:USR1@N: save, then requeue
CHLD        the step ended
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from types import TracebackType
from typing import Any, Dict, Optional, Sequence, Type

_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD)


class Signals:
    """Catch the signals while the object is entered, in the main thread only.

    `stop` is the name of the first TERM or INT, and `warned` is set by USR1; both stay set.
    """

    def __init__(self) -> None:
        self.stop: Optional[str] = None
        self.warned = False
        self._before: Dict[int, Any] = {}
        self._read = self._write = -1
        self._wakeup = -1

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _WATCHED:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)
        self._read = self._write = -1

    def wait(self, seconds: float, files: Sequence[int] = ()) -> None:
        """Return at the next signal (CHLD included), when one of the descriptors can be read, or after `seconds`."""
        poll = select.poll()  # select() ends at descriptor 1,023
        for fd in (self._read, *files):
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(max(0.0, seconds) * 1000.0)]
        if self._read in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._read, 512):
                    pass

    def wake(self) -> None:
        """End a `wait` from another thread; do nothing where no thread waits."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"w")

    def pause_until_stop_or_warning(self, seconds: float) -> None:
        """Wait until TERM, INT or USR1, `seconds` at most; return at once where one has come before."""
        end = time.monotonic() + seconds
        while not self.stop and not self.warned and time.monotonic() < end:
            self.wait(end - time.monotonic())

    def _note(self, number: int, frame: Any) -> None:
        if number == signal.SIGUSR1:
            self.warned = True
        elif number != signal.SIGCHLD and not self.stop:
            self.stop = signal.Signals(number).name
