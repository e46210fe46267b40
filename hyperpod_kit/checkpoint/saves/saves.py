"""What became of each save: the handles, and what is said when saves come to nothing."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

from hyperpod_kit.checkpoint.agent.protocol.message import CaptureOutcome, assert_never
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import (
    AgentEnded,
    AgentEvent,
    AgentTrouble,
    Alive,
    Fatal,
    Ready,
    RootTaken,
    SaveDropped,
    SaveDurable,
    SaveEvent,
    SaveFailed,
    SaveLocal,
    SaveSealed,
    SlotReleased,
    Stalled,
    StartRefused,
    TensorQuery,
)
from hyperpod_kit.checkpoint.agent.reports.save_failures import NO_SLOT, Tally
from hyperpod_kit.checkpoint.saves.handle import Handle, SaveState
from hyperpod_kit.checkpoint.saves.save_schedule import Tier
from hyperpod_kit.errors import CheckpointError, RunIsOwned
from hyperpod_kit.untrusted.text import counted

log = logging.getLogger("hyperpod_kit.checkpoint")

_MAX_WARNINGS = 16


class _SavesSettings(NamedTuple):
    """As Saves is made with them."""

    root: str
    most: int | None
    waiting: Callable[[], None]


class Saves:
    """The saves of one Manager. `changed` guards all of it and is notified of every change.

    `most`: so many saves in a row that came to nothing are an error; None: never. `waiting`: called each second while
    the program waits for a save and the agent gets on. A loss is logged at once, in whatever
    thread hears of it, and warned about (`warnings`) in the training loop's next call.
    """

    def __init__(
        self,
        root: str,
        most: int | None,
        *,
        waiting: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if most is not None and most < 1:
            raise ValueError(f"max_lost is {most!r}, expected a number above 0, or None for no error at all")
        self.changed = threading.Condition()
        self.skipped = 0
        self.released = 0
        self.agent_error: str | None = None
        self.taken_by: str | None = None
        """Who has the root in the place of this start."""
        self.stalled: str | None = None
        self.newest: Handle | None = None
        self._settings = _SavesSettings(root, most, waiting)
        self._open: dict[int, Handle] = {}
        self._tally = Tally(clock)
        self._last = ""
        self._warnings: list[str] = []

    # --- from the training loop ---------------------------------------------------------------------------------

    def new(self, step: int, epoch: int, seq: int, tier: Tier = "storage") -> Handle:
        """Create the handle of a save that begins, and keep it as the newest."""
        handle = Handle(step, epoch, seq, self.changed, tier, waiting=self._report_waiting_unless_stuck)
        with self.changed:
            self._open = {number: open_handle for number, open_handle in self._open.items() if not open_handle.final}
            self._open[seq] = self.newest = handle
        return handle

    def _report_waiting_unless_stuck(self) -> None:
        if self.stalled is None and self.agent_error is None:
            self._settings.waiting()

    def record_restored(self, seq: int, step: int) -> None:
        """Count the checkpoint that was restored as the newest durable save until another is."""
        with self.changed:
            self._tally.record_durable_and_check_recovery(seq, step)

    def end_without_success(self, handle: Handle, state: SaveState, reason: str) -> None:
        """End a save as skipped or failed, on this rank's own account, and call its callbacks."""
        with self.changed:
            self.skipped += state is SaveState.SKIPPED
            self._end_and_count_failure(handle, state, reason)
        self._run_done_callbacks()

    def skip(self, handle: Handle) -> None:
        self.end_without_success(
            handle, SaveState.SKIPPED, f"earlier saves are still on their way to storage: {NO_SLOT}"
        )

    def emit_warnings(self, stacklevel: int) -> None:
        """Warn (RuntimeWarning) about saves that were lost since the last call. `stacklevel` as in
        warnings.warn, from the caller."""
        with self.changed:
            texts, self._warnings = self._warnings, []
        for text in texts:
            warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)

    @property
    def trouble(self) -> CheckpointError | None:
        """Return the error that says why training on would be unprotected; None where it is not."""
        again = "restart the run: it restores the newest step that all ranks have in memory"
        with self.changed:
            if self.taken_by is not None:
                return RunIsOwned(
                    self.taken_by,
                    hint="only one trainer may use a root at a time: stop this trainer, or give it its own root; "
                    f"hyperpod-kit checkpoint ls {self._settings.root}",
                )
            if self.agent_error is not None:
                return CheckpointError(f"no save can reach storage: {self.agent_error}", hint=again)
            if self.stalled is not None:
                return CheckpointError(f"no save reaches storage: {self.stalled}", hint=again)
            if self._settings.most is not None and self._tally.broken >= self._settings.most:
                return CheckpointError(
                    f"{counted(self._tally.in_a_row, 'save', 'saves in a row')} failed, the last: {self._last}; "
                    f"{self._tally.describe_failures_and_newest_durable().rpartition('; ')[2]}",
                    hint=(
                        f"repair {self._settings.root}, then {again}; Manager(max_lost=None) continues training "
                        "unprotected"
                    ),
                )
        return None

    @property
    def is_newest_durable(self) -> bool:
        """Return whether the newest save that was asked for is durable; True too when none was asked for."""
        with self.changed:
            return self.taken_by is None and (self.newest is None or self.newest.state == SaveState.DURABLE)

    # --- from the agent -----------------------------------------------------------------------------------------

    def handle_event(self, event: AgentEvent, incarnation: str) -> None:
        """Update the saves from an agent's event and call the callbacks of those that ended."""
        self._handle_event(event, incarnation)
        self._run_done_callbacks()

    def _handle_event(self, event: AgentEvent, incarnation: str) -> None:
        with self.changed:
            if isinstance(event, (Fatal, AgentEnded)):
                self._fail_unfinished_saves_for_ended_agent(event.reason)
            elif isinstance(event, RootTaken):
                self._fail_unfinished_saves_for_taken_root(event.reason)
            elif isinstance(event, SlotReleased):
                self.released += 1
                self.changed.notify_all()
            elif isinstance(event, AgentTrouble):
                self.warn_later(event.reason)
            elif isinstance(event, Stalled):
                self.stalled = event.reason or None
                self.warn_later(event.reason or "the checkpoint agent continues")
            elif isinstance(event, (Ready, StartRefused, Alive, TensorQuery)):
                pass  # of no save, and answered by others
            elif event.key[2] == incarnation:
                self._handle_save_event(event, self._open.get(event.key[1]))

    def _handle_save_event(self, event: SaveEvent, handle: Handle | None) -> None:
        if handle is None:
            return
        if isinstance(event, SaveDurable):
            if not handle.final:
                handle.checkpoint_id = event.note
                handle.advance(SaveState.DURABLE)
                if self._tally.record_durable_and_check_recovery(handle.seq, handle.step):
                    log.info("save of step %d: durable again", handle.step)
        elif isinstance(event, SaveFailed):
            self._end_and_count_failure(handle, SaveState.FAILED, event.note)
        elif isinstance(event, SaveDropped):
            # Overtaken: it is on the nodes' disks, or was for memory, and a newer one is in its place.
            self._end_and_count_failure(
                handle, SaveState.DROPPED, event.note, counts=event.outcome is not CaptureOutcome.OVERTAKEN
            )
        elif isinstance(event, SaveSealed):
            handle.advance(SaveState.SEALED)
        elif isinstance(event, SaveLocal):
            handle.advance(SaveState.LOCAL)
        else:
            assert_never(event)

    def _fail_unfinished_saves_for_taken_root(self, reason: str) -> None:
        if self.taken_by is None:
            self.taken_by = reason
            for handle in self._open.values():
                self._end_and_count_failure(handle, SaveState.FAILED, reason)
            log.error("%s", reason)
        self.changed.notify_all()

    def _fail_unfinished_saves_for_ended_agent(self, reason: str) -> None:
        if self.agent_error is None:
            self.agent_error = reason
            lost = [handle for handle in self._open.values() if not handle.final]
            for handle in lost:
                handle.advance(SaveState.FAILED, reason)
                self._tally.record_failure_and_check_report_due(handle.seq, reason)
            if lost:
                self.warn_later(f"save of step {lost[-1].step}: failed: {reason}")
        self.changed.notify_all()

    def _end_and_count_failure(self, handle: Handle, state: SaveState, reason: str, *, counts: bool = True) -> None:
        if handle.final:
            return
        handle.advance(state, reason)
        if handle.state == state and counts:
            self._last = f"save of step {handle.step}: {state}: {reason}"
            if self._tally.record_failure_and_check_report_due(handle.seq, reason):
                self.warn_later(f"{self._last}; {self._tally.describe_failures_and_newest_durable()}")

    def _run_done_callbacks(self) -> None:
        """Call the callbacks of the saves that have ended, outside of the lock: a callback may take its
        time, and query other saves."""
        with self.changed:
            final = [handle for handle in self._open.values() if handle.final]
            ended = [(handle, call) for handle in final for call in handle.take_callbacks()]
        for handle, call in ended:
            try:
                call(handle)
            except Exception:
                log.exception("a callback of %r failed", handle)

    def warn_later(self, text: str) -> None:
        """Log a warning now, and keep it for a Python warning in the training loop's next call."""
        log.warning("%s", text)
        self._warnings = [*self._warnings, text][-_MAX_WARNINGS:]
