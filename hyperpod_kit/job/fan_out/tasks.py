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
    """One node's task. `failure_reason`: it failed; `warnings`: what went wrong with others, of which it got over."""

    node: str
    last_message_at: float
    places: Optional[List[Any]] = None
    done: bool = False
    is_lost: bool = False
    failure_reason: str = ""
    hint: Optional[str] = None
    read: int = 0
    received: int = 0
    resumed_bytes: int = 0
    warnings: List[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Nothing more is to come of it."""
        return self.done or self.is_lost or bool(self.failure_reason)

    @property
    def bytes_on_node(self) -> int:
        """Bytes that this node has."""
        return self.read + self.received + self.resumed_bytes

    def to_dict(self) -> Dict[str, Any]:
        return {
            "node": self.node,
            "done": self.done,
            "read": self.read,
            "received": self.received,
            "found": self.resumed_bytes,
            **({"why": self.failure_reason or "lost"} if not self.done else {}),
        }


class Tasks:
    """All tasks of a step, by their numbers. One that says nothing for `silence` seconds is gone."""

    def __init__(self, process: subprocess.Popen[bytes], nodes: Sequence[str], silence: float) -> None:
        now = time.monotonic()
        self.all = [TaskState(node, now) for node in nodes]
        self._silence = silence
        self._has_first_message = False
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
        while not all(task.over or condition(task) for task in self.all):
            if end is not None and time.monotonic() > end:
                return False
            try:
                line = self._lines.get(timeout=0.5)
            except queue.Empty:
                line = b""
            if line is None:
                self._ended = True
            elif line:
                self._apply_message_line(line)
            self._mark_silent_tasks_lost()
        return True

    def _mark_silent_tasks_lost(self) -> None:
        """Who has not been heard of. Nobody is gone before the first has come: a step may wait for its nodes."""
        limit = time.monotonic() - self._silence
        for task in self.all:
            if not task.over and (self._ended or (self._has_first_message and task.last_message_at < limit)):
                task.is_lost = True

    def _apply_message_line(self, line: bytes) -> None:
        try:
            message = parse.parse_json_object(line, _LONGEST)
            task = message["task"]
            if type(task) is not int or not 0 <= task < len(self.all):
                return
            counts = [message.get(key, 0) for key in ("read", "received", "found")]
            if any(type(count) is not int or not 0 <= count < 1 << 63 for count in counts):
                return
        except (ValueError, KeyError):
            return  # a Prolog's or a library's own words
        now = time.monotonic()
        if not self._has_first_message:
            self._has_first_message = True
            for task_state in self.all:
                task_state.last_message_at = now
        task_state = self.all[task]
        task_state.last_message_at = now
        what = message.get("op")
        if what == "hello" and isinstance(message.get("places"), list):
            task_state.places = message["places"]
            task_state.node = str(message.get("node") or task_state.node)
        elif what in ("far", "done"):
            task_state.read, task_state.received, task_state.resumed_bytes = counts
            task_state.done = task_state.done or what == "done"
        elif what == "failed":
            hint = message.get("hint")
            task_state.failure_reason, task_state.hint = (
                str(message.get("why")),
                hint if isinstance(hint, str) else None,
            )
        elif what == "peer":
            task_state.warnings.append(str(message.get("why")))
