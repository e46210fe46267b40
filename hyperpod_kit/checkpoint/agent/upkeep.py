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

_MOST_WORDS = 100


class Upkeep:
    """Used from the agent's main thread. `tell` an event to this rank's trainer."""

    def __init__(self, storage: Storage, post: Post, tell: Callable[[AgentEvent], None]) -> None:
        self._storage, self._tell = storage, tell
        self.worker = Worker("keep", post)
        self.busy = False
        """Behind a commit there is still to be cleaned up."""
        self._due = False
        self._abandoned: Set[str] = set()
        self._told: Set[str] = set()

    def came_to_nothing(self, attempt: str) -> None:
        """The save that was written there has had its end: what lies there is of no use."""
        self._abandoned.add(attempt)

    def after_commit(self, key: Key) -> None:
        """Clean up behind the commit of `key`; while that goes on for an earlier one, once more after it."""
        self._due = self.busy
        if not self.busy:
            self.busy = True
            self.worker.submit(RetentionResult, key, self._storage.keep_up(frozenset(self._abandoned)))

    def kept(self, result: RetentionResult) -> None:
        """Storage is as the policy wants it, but for what is left."""
        self.busy = False
        if result.found is not None:
            self._note(result.found)
        if result.why:
            self._print(f"old checkpoints stay: {result.why}")
        if self._due:
            self.after_commit(result.key)

    def clear(self, capture: Capture) -> None:
        """Give something up for a save that had no room."""
        job = self._storage.make_room(capture, frozenset(self._abandoned))
        self.worker.submit(ClearResult, capture.key, job)

    def cleared(self, result: ClearResult) -> str:
        """Why nothing was given up; "" when something was."""
        if result.found is None:
            return result.why
        self._note(result.found)
        return "" if result.found.deleted else "nothing that the policy can do without could be given up for it"

    def _note(self, done: retention.Applied) -> None:
        """Each reason is said once."""
        self._abandoned.difference_update(done.deleted)
        for attempt, reason in done.left:
            self._print(f"old checkpoints stay: {attempt}: {reason}")
        for attempt, reason in done.damaged:
            text = f"checkpoint {attempt} was read back and is not what was committed: {reason}"
            if self._print(text):
                self._tell(AgentTrouble(f"{text}; an older one stays in its place"))

    def _print(self, text: str) -> bool:
        """To the agent's log; whether it was the first time."""
        if text in self._told or len(self._told) >= _MOST_WORDS:
            return False
        self._told.add(text)
        print(text, file=sys.stderr, flush=True)
        return True
