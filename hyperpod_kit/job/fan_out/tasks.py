"""What the tasks of a fan-out say, as the command that started them knows it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence

from hyperpod_kit.untrusted import parse

_LONGEST = 1 << 16


@dataclass
class TaskState:
    """One node's task. `why`: it failed; `words`: what went wrong with others, of which it got over."""

    node: str
    heard: float
    places: Optional[List[Any]] = None
    done: bool = False
    gone: bool = False
    why: str = ""
    hint: Optional[str] = None
    read: int = 0
    received: int = 0
    found: int = 0
    words: List[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Nothing more is to come of it."""
        return self.done or self.gone or bool(self.why)

    @property
    def bytes_on_node(self) -> int:
        """Bytes that this node has."""
        return self.read + self.received + self.found

    def to_dict(self) -> Dict[str, Any]:
        return {
            "node": self.node,
            "done": self.done,
            "read": self.read,
            "received": self.received,
            "found": self.found,
            **({"why": self.why or "lost"} if not self.done else {}),
        }


class Tasks:
    """All tasks of a step, by their numbers. One that says nothing for `silence` seconds is gone."""

    def __init__(self, process: subprocess.Popen[bytes], nodes: Sequence[str], silence: float) -> None:
        now = time.monotonic()
        self.all = [TaskState(node, now) for node in nodes]
        self._silence = silence
        self._begun = False
        self._lines: queue.Queue[Optional[bytes]] = queue.Queue()
        self._ended = False
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in iter(lambda: process.stdout.readline(_LONGEST), b""):  # type: ignore[union-attr]
            self._lines.put(line)
        self._lines.put(None)

    def until(self, condition: Callable[[TaskState], bool], within: Optional[float] = None) -> bool:
        """Whether that is so of every task that is not over; False after `within` seconds."""
        end = None if within is None else time.monotonic() + within
        while not all(one.over or condition(one) for one in self.all):
            if end is not None and time.monotonic() > end:
                return False
            try:
                line = self._lines.get(timeout=0.5)
            except queue.Empty:
                line = b""
            if line is None:
                self._ended = True
            elif line:
                self._hear(line)
            self._mark_silent_tasks_gone()
        return True

    def _mark_silent_tasks_gone(self) -> None:
        """Who has not been heard of. Nobody is gone before the first has come: a step may wait for its nodes."""
        limit = time.monotonic() - self._silence
        for one in self.all:
            if not one.over and (self._ended or (self._begun and one.heard < limit)):
                one.gone = True

    def _hear(self, line: bytes) -> None:
        try:
            said = parse.parse_json_object(line, _LONGEST)
            task = said["task"]
            if type(task) is not int or not 0 <= task < len(self.all):
                return
            counts = [said.get(key, 0) for key in ("read", "received", "found")]
            if any(type(count) is not int or not 0 <= count < 1 << 63 for count in counts):
                return
        except (ValueError, KeyError):
            return  # a Prolog's or a library's own words
        now = time.monotonic()
        if not self._begun:
            self._begun = True
            for one in self.all:
                one.heard = now
        one = self.all[task]
        one.heard = now
        what = said.get("op")
        if what == "hello" and isinstance(said.get("places"), list):
            one.places = said["places"]
            one.node = str(said.get("node") or one.node)
        elif what in ("far", "done"):
            one.read, one.received, one.found = counts
            one.done = one.done or what == "done"
        elif what == "failed":
            hint = said.get("hint")
            one.why, one.hint = str(said.get("why")), hint if isinstance(hint, str) else None
        elif what == "peer":
            one.words.append(str(said.get("why")))
