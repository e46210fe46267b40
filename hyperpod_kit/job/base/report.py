"""Write the report of `job run`: one line an event, `hyperpod-kit: MESSAGE`, a sentence for people.

For programs it is `hyperpod-kit: {"message": "...", "event": "...", ...}`: after the prefix there is one JSON object.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Callable, Mapping

from hyperpod_kit.untrusted.text import clean_one_line

PREFIX = "hyperpod-kit: "


_LONGEST = 4000


def json_line(event: str, message: str, **fields: Any) -> str:
    """Return the line of an event for programs, with its newline."""
    return PREFIX + json.dumps({"message": message, "event": event, **fields}) + "\n"


def sentence_line(message: str) -> str:
    """Return the line of an event for people, with its newline. Words of others in it cannot steer a terminal."""
    return f"{PREFIX}{clean_one_line(message, _LONGEST)}\n"


DEAD = (errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.ESHUTDOWN, errno.ENODEV)
"""Errors that a descriptor keeps for ever when its mount was lost, also after the mount is back."""


class JobReport:
    """Writes events to file descriptor `fd`, each in one write, so that srun's own output cannot cut into a line.

    An error of the log does not end the job. `dead` is set once the log's mount was lost under it: only a new run of
    the batch script gets a new log. `event_listener` is called with each event as well, and with its fields.
    `is_json`: the lines are for programs.
    """

    def __init__(
        self,
        fd: int = 1,
        write: Callable[[int, bytes], int] = os.write,
        event_listener: Callable[[str, Mapping[str, Any]], None] = lambda event, fields: None,
        *,
        is_json: bool = False,
    ) -> None:
        self._fd = fd
        self._is_json = is_json
        self._write = write
        self._event_listener = event_listener
        self.dead = False

    def __call__(self, event: str, message: str, **fields: Any) -> None:
        if self._is_json:
            line = json_line(event, message, **fields)
        else:
            line = sentence_line(message)
        data = line.encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[self._write(self._fd, data) :]
        except OSError as err:
            self.dead = self.dead or err.errno in DEAD
        self._event_listener(event, fields)
