"""Write the report of `job run`: one line an event, `hyperpod-kit: {"message": "...", "event": "...", ...}`.

After the prefix there is exactly one JSON object; its `message` is the sentence for people.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Callable, Mapping

PREFIX = "hyperpod-kit: "


def line(event: str, message: str, **fields: Any) -> str:
    """Return the line of an event, with its newline."""
    return PREFIX + json.dumps({"message": message, "event": event, **fields}) + "\n"


DEAD = (errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.ESHUTDOWN, errno.ENODEV)
"""Errors that a descriptor keeps for ever when its mount was lost, also after the mount is back."""


class JobReport:
    """Writes events to file descriptor `fd`, each in one write, so that srun's own output cannot cut into a line.

    An error of the log does not end the job. `dead` is set once the log's mount was lost under it: only a new run of
    the batch script gets a new log. `event_listener` is called with each event as well, and with its fields.
    """

    def __init__(
        self,
        fd: int = 1,
        write: Callable[[int, bytes], int] = os.write,
        event_listener: Callable[[str, Mapping[str, Any]], None] = lambda event, fields: None,
    ) -> None:
        self._fd = fd
        self._write = write
        self._event_listener = event_listener
        self.dead = False

    def __call__(self, event: str, message: str, **fields: Any) -> None:
        data = line(event, message, **fields).encode()
        try:
            while data:
                data = data[self._write(self._fd, data) :]
        except OSError as err:
            self.dead = self.dead or err.errno in DEAD
        self._event_listener(event, fields)
