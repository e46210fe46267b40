"""Take a save: from a snapshot of the state to a captured slot, of which the agent is told."""

from __future__ import annotations

import time
from typing import Literal

from hyperpod_kit.checkpoint import capture, codec, comparing, copier, device
from hyperpod_kit.checkpoint.agent import control_page
from hyperpod_kit.checkpoint.agent.control_page import CaptureOrigin, Page, SlotState
from hyperpod_kit.checkpoint.agent.losses import NO_SLOT
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import MakeRoom, SaveSkipped, SlotCaptured
from hyperpod_kit.checkpoint.fence import Flight
from hyperpod_kit.checkpoint.handle import Handle, SaveState
from hyperpod_kit.checkpoint.keeper import AgentKeeper
from hyperpod_kit.checkpoint.saves import Saves
from hyperpod_kit.checkpoint.slots import SlotPool
from hyperpod_kit.checkpoint.snapshot import Snapshot, TensorPiece

OnBusy = Literal["skip", "wait", "replace"]

_POLL_SECONDS = 0.01
_RELEASE_SECONDS = 2.0


class Taking:
    """How this rank takes its saves. `origin`: what the control page of each of them says alike."""

    def __init__(
        self,
        origin: CaptureOrigin,
        algorithm: str,
        *,
        pool: SlotPool,
        copies: copier.Copier,
        saves: Saves,
        agent: AgentKeeper,
        comparing: comparing.Comparing,
        overlap: bool,
    ) -> None:
        self.epoch = 0
        self._origin, self._algorithm, self._overlap = origin, algorithm, overlap
        self._pool, self._copier, self._saves, self._agent = pool, copies, saves, agent
        self._comparing = comparing
        self._devices = device.Devices()
        self._plan: capture.CapturePlan | None = None

    def prepare(self, snapshot: Snapshot) -> None:
        """Make and fault in the slots while training goes on; the first save finds them."""
        self._pool.prepare(
            lambda: (self._plan_of(snapshot).layout, len(codec.text_of(snapshot.tree))),
            pin=any(device.is_on(piece.tensor) for piece in snapshot.pieces),
        )

    def take(self, snapshot: Snapshot, handle: Handle, on_busy: OnBusy) -> Flight | None:
        """Begin the copy into a slot; None when none is free. What it raises is this save's end."""
        try:
            return self._capture(snapshot, handle, on_busy)
        except BaseException as err:
            self._give_up(handle, f"it could not be captured: {str(err) or type(err).__name__}")
            raise

    def _plan_of(self, snapshot: Snapshot) -> capture.CapturePlan:
        plan = self._plan
        if plan is None or not plan.fits(snapshot):
            plan = self._plan = capture.CapturePlan(
                snapshot,
                rank=self._origin.rank,
                world=self._origin.world,
                run_id=self._origin.run_id,
                algorithm=self._algorithm,
            )
        return plan

    def _capture(self, snapshot: Snapshot, handle: Handle, on_busy: OnBusy) -> Flight | None:
        self._pool.planned()
        plan = self._plan_of(snapshot)
        extra = codec.text_of(snapshot.tree)
        compared = self._comparing.begin(handle.seq, plan.fingerprint, snapshot.pieces, last=on_busy == "wait")
        room = len(extra) + (compared.room if compared is not None else 0)
        target = self._pool.acquire(plan.layout, room)
        if target is None:
            target = self._make_room(plan, handle, room, on_busy)
        if target is None:
            self._comparing.lost(handle.seq)
            self._agent.send(SaveSkipped(self._key(handle), NO_SLOT))
            self._saves.skip(handle)
            return None
        page = Page(origin=self._origin, epoch=self.epoch, seq=handle.seq, step=handle.step, shard=plan.facts(extra))
        target.begin(page, extra)
        try:
            return self._fly(target, [snapshot.pieces[n] for n in plan.mine], handle, compared)
        except BaseException:
            if target.slot.page is not None and target.slot.page.state == SlotState.WRITING:
                target.end(SlotState.FREE)
            raise

    def _fly(
        self, target: capture.Target, pieces: list[TensorPiece], handle: Handle, compared: comparing.Comparison | None
    ) -> Flight:
        early, late, far = target.split(pieces)
        transfers = self._devices.start(
            [
                (target.views[piece.spec.name], piece.tensor, piece.early)
                for piece in far
                if piece.spec.name in target.views
            ],
            compared.folds() if compared is not None else (),
        )
        first, rest = target.work(early), target.work(late)
        if compared is not None:
            first, rest = first + compared.work(early=True), rest + compared.work(early=False)

        def finish(error: BaseException | None) -> None:
            self._finish(target, handle, error, compared)

        if self._overlap:
            self._copier.start(first).wait()
            return Flight(self._copier, rest, transfers, finish, background=True)
        return Flight(self._copier, rest + first, transfers, finish, background=False)

    def _finish(
        self, target: capture.Target, handle: Handle, error: BaseException | None, compared: comparing.Comparison | None
    ) -> None:
        """The copy has ended, in whatever thread."""
        if error is not None:
            target.end(SlotState.FREE)
            self._give_up(handle, f"the copy failed: {error}")
            return
        target.end(SlotState.CAPTURED, compared.held() if compared is not None else None)
        with self._saves.changed:
            handle.become(SaveState.CAPTURED)
        self._agent.send(SlotCaptured(target.slot.name.slot))

    def _give_up(self, handle: Handle, why: str) -> None:
        """This rank will not have this save.

        The agent then replies `dropped`, which changes nothing: a handle never leaves a final state.
        """
        self._saves.lose(handle, SaveState.FAILED, why)
        self._agent.send(SaveSkipped(self._key(handle), why))

    def _make_room(
        self, plan: capture.CapturePlan, handle: Handle, extra: int, on_busy: OnBusy
    ) -> capture.Target | None:
        if on_busy == "skip":
            return None
        end = time.monotonic() + (_RELEASE_SECONDS if on_busy == "replace" else float("inf"))
        asked = self._saves.released
        if on_busy == "replace":
            self._agent.send(MakeRoom(self._key(handle)))
        target = None
        while target is None and self._saves.agent_error is None and time.monotonic() < end:
            answered = self._saves.released != asked
            target = self._pool.acquire(plan.layout, extra)
            if target is None and on_busy == "replace" and answered:
                return None
            if target is None:
                with self._saves.changed:
                    # Woken by every event; slots are freed a moment after the event, hence the short time.
                    self._saves.changed.wait(_POLL_SECONDS)
        return target

    def _key(self, handle: Handle) -> control_page.Key:
        return (self.epoch, handle.seq, self._origin.incarnation)
