"""What rank 0's agent does with old checkpoints: retention behind each commit, and room for a save that found none.

In a thread of its own, since it may read checkpoints back for a long time: no commit waits for it.
"""

from __future__ import annotations

import sys
from typing import Callable, Set

from hyperpod_kit.checkpoint.agent.agent_captures import Capture
from hyperpod_kit.checkpoint.agent.agent_events import ClearResult, RetentionResult
from hyperpod_kit.checkpoint.agent.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import AgentEvent, AgentTrouble
from hyperpod_kit.checkpoint.agent.worker import Post, Worker
from hyperpod_kit.checkpoint.repository import retention

_MOST_LOGGED = 100


class Upkeep:
    """Used from the agent's main thread. `send_event` an event to this rank's trainer."""

    def __init__(self, storage: Storage, post: Post, send_event: Callable[[AgentEvent], None]) -> None:
        self._storage, self._send_event = storage, send_event
        self.worker = Worker("keep", post)
        self.busy = False
        """Behind a commit there is still to be cleaned up."""
        self._due = False
        self._abandoned: Set[str] = set()
        self._logged: Set[str] = set()

    def add_abandoned(self, checkpoint_id: str) -> None:
        """The save that was written there has had its end: what lies there is of no use."""
        self._abandoned.add(checkpoint_id)

    def start_retention(self, key: Key) -> None:
        """Clean up behind the commit of `key`; while that goes on for an earlier one, once more after it."""
        self._due = self.busy
        if not self.busy:
            self.busy = True
            self.worker.submit(RetentionResult, key, self._storage.apply_retention(frozenset(self._abandoned)))

    def on_retention(self, result: RetentionResult) -> None:
        """Log what retention did, and start it again when another commit came meanwhile."""
        self.busy = False
        if result.applied is not None:
            self._report_undeleted_and_damaged_forget_deleted(result.applied)
        if result.failure:
            self._log_once(f"old checkpoints stay: {result.failure}")
        if self._due:
            self.start_retention(result.key)

    def start_making_room(self, capture: Capture) -> None:
        """Give something up for a save that had no room."""
        job = self._storage.make_room(capture, frozenset(self._abandoned))
        self.worker.submit(ClearResult, capture.key, job)

    def log_problems_and_explain_if_none_deleted(self, result: ClearResult) -> str:
        """Why nothing was given up; "" when something was."""
        if result.applied is None:
            return result.failure
        self._report_undeleted_and_damaged_forget_deleted(result.applied)
        if result.applied.deleted:
            return ""
        return "nothing that the policy can do without could be given up for it"

    def _report_undeleted_and_damaged_forget_deleted(self, applied: retention.Applied) -> None:
        """Each reason is said once."""
        self._abandoned.difference_update(applied.deleted)
        for checkpoint_id, reason in applied.remaining:
            self._log_once(f"old checkpoints stay: {checkpoint_id}: {reason}")
        for checkpoint_id, reason in applied.damaged:
            text = f"checkpoint {checkpoint_id} was read back and is not what was committed: {reason}"
            if self._log_once(text):
                self._send_event(AgentTrouble(f"{text}; an older one stays in its place"))

    def _log_once(self, text: str) -> bool:
        """Write a text to the agent's log unless it was written before or the limit is reached; return whether it
        was written."""
        if text in self._logged or len(self._logged) >= _MOST_LOGGED:
            return False
        self._logged.add(text)
        print(text, file=sys.stderr, flush=True)
        return True
