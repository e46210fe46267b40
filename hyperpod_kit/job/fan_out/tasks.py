"""The states of the tasks of a fan-out, which the command that started them follows by their messages.

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
    """The state of one node's task.

    `failure_reason`: why it failed, "" while it has not; `warnings`: problems with other nodes that did not stop it.
    """

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
        """Whether no more progress is expected of the task."""
        return self.done or self.is_lost or bool(self.failure_reason)

    @property
    def bytes_on_node(self) -> int:
        """The number of bytes that the node has."""
        return self.read + self.received + self.resumed_bytes

    def to_dict(self) -> Dict[str, Any]:
        """Return the row of the node for --json."""
        row: Dict[str, Any] = {
            "node": self.node,
            "done": self.done,
            "read": self.read,
            "received": self.received,
            "found": self.resumed_bytes,
        }
        if not self.done:
            row["why"] = self.failure_reason or "lost"
        return row


class Tasks:
    """All tasks of a step, by their numbers. A task without a message for `silence` seconds counts as lost."""

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
        """Wait until the condition holds for every task that is not over, and return True.

        Return False where that takes more than `within` seconds; None waits without a limit.
        """
        end: Optional[float] = None
        if within is not None:
            end = time.monotonic() + within
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
        """Mark the tasks that have sent nothing for too long, and all that are not over once the step has ended.

        Silence does not count before the first message of any task: a step may wait for its nodes.
        """
        limit = time.monotonic() - self._silence
        for task in self.all:
            if task.over:
                continue
            is_silent = self._has_first_message and task.last_message_at < limit
            if self._ended or is_silent:
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
            return  # output of a Prolog or of a library
        now = time.monotonic()
        if not self._has_first_message:
            self._has_first_message = True
            for task_state in self.all:
                task_state.last_message_at = now
        task_state = self.all[task]
        task_state.last_message_at = now
        _apply_message(task_state, message, counts)


def _apply_message(task_state: TaskState, message: Dict[str, Any], counts: Sequence[int]) -> None:
    """Take over what a message says into the state of its task; one of an unknown kind changes nothing."""
    kind = message.get("op")
    if kind == "hello" and isinstance(message.get("places"), list):
        task_state.places = message["places"]
        task_state.node = str(message.get("node") or task_state.node)
    elif kind in ("far", "done"):
        task_state.read, task_state.received, task_state.resumed_bytes = counts
        if kind == "done":
            task_state.done = True
    elif kind == "failed":
        hint = message.get("hint")
        task_state.failure_reason = str(message.get("why"))
        task_state.hint = None
        if isinstance(hint, str):
            task_state.hint = hint
    elif kind == "peer":
        task_state.warnings.append(str(message.get("why")))
