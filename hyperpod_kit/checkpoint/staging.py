"""Stage a save: from the state's tensors to a captured slot, of which the agent is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Literal

import torch

from hyperpod_kit.checkpoint import codec, device, memory_copy, replica_check
from hyperpod_kit.checkpoint.agent.control_page import CaptureOrigin, Key, Page, SlotState
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import FreeSlot, SaveSkipped, SlotCaptured
from hyperpod_kit.checkpoint.agent.save_failures import NO_SLOT
from hyperpod_kit.checkpoint.agent_supervisor import AgentSupervisor
from hyperpod_kit.checkpoint.copied_sources import CopiedSources, CopyGuard
from hyperpod_kit.checkpoint.fence import Fence
from hyperpod_kit.checkpoint.handle import Handle, SaveState
from hyperpod_kit.checkpoint.plan import SavePlan
from hyperpod_kit.checkpoint.repository.shard import ShardLayout
from hyperpod_kit.checkpoint.saves import Saves
from hyperpod_kit.checkpoint.slot_copy import SlotCopy
from hyperpod_kit.checkpoint.slots import SlotPool
from hyperpod_kit.checkpoint.staging_slot import StagingSlot
from hyperpod_kit.checkpoint.tensors import StateTensors

OnBusy = Literal["skip", "wait", "replace"]

_POLL_SECONDS = 0.01
_RELEASE_SECONDS = 2.0


class Staging:
    """How this rank copies its tensors into a slot: the only part of a save that the trainer waits for.

    `origin`: what the control page of each save says of this start. With `overlap` a save returns while threads still
    copy, and the `fence` keeps the optimizers from the tensors. `waiting` is called while a save waits for room that
    the agent is making.
    """

    def __init__(
        self,
        origin: CaptureOrigin,
        algorithm: str,
        *,
        pool: SlotPool,
        threads: int,
        saves: Saves,
        agent: AgentSupervisor,
        replica_check: replica_check.ReplicaCheck,
        overlap: bool,
        waiting: Callable[[], None],
    ) -> None:
        self.fence = Fence()
        self._waiting = waiting
        self._origin, self._algorithm, self._overlap = origin, algorithm, overlap
        self._pool, self._saves, self._agent, self._replica_check = pool, saves, agent, replica_check
        self._copier = memory_copy.Copier(threads)
        self._devices = device.Devices()
        self._plan: SavePlan | None = None

    def make_slots_in_thread(self, tensors: StateTensors) -> None:
        """Start to make and fault in the slots while training continues; the first save finds them."""
        self._pool.make_slots_in_thread(
            lambda: self._needed_layout_and_extra_bytes(tensors),
            pin=any(device.is_on_cuda(piece.tensor) for piece in tensors.pieces),
        )

    def _needed_layout_and_extra_bytes(self, tensors: StateTensors) -> tuple[ShardLayout, int]:
        extra, local_tree = self._serialize_tree(tensors)
        return self._reuse_or_make_plan(tensors, local_tree).layout, len(extra)

    def _serialize_tree(self, tensors: StateTensors) -> tuple[bytes, bytes]:
        """Return the text of what is not a tensor, and which part of it lies in the shard: none of rank
        0's, which extra.json has."""
        if self._origin.rank == 0:
            return codec.serialize_whole_tree_and_per_rank_part(tensors.tree, ())
        return codec.serialize_whole_tree_and_per_rank_part(tensors.tree, tensors.per_rank_keys)

    def stage(
        self,
        tensors: StateTensors,
        handle: Handle,
        on_busy: OnBusy,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> bool:
        """Copy the tensors into a slot; return False when none is free. An error ends this save as failed
        and is raised."""
        # A slot's tensors outlive this call: made in inference mode, no later copy could write to them.
        with torch.inference_mode(False):
            try:
                started = self._start_copy_or_skip(tensors, handle, on_busy)
            except BaseException as err:
                self._fail_save_and_notify_agent(handle, f"it could not be captured: {str(err) or type(err).__name__}")
                raise
            if started is None:
                return False
            copy, slot = started
            if self._overlap and self.fence.install_step_hooks_unless_no_optimizer(optimizers):
                self.fence.track(copy, handle)
            else:
                copy.wait()
            self._pool.make_lacking_slots_in_thread(slot)
            return True

    def _start_copy_or_skip(
        self, tensors: StateTensors, handle: Handle, on_busy: OnBusy
    ) -> tuple[SlotCopy, StagingSlot] | None:
        """Plan the save, acquire and prepare a slot and start the copy into it; None, with the save ended
        as skipped, when no slot is free."""
        self._pool.wait_until_layout_is_known()
        extra, local_tree = self._serialize_tree(tensors)
        plan = self._reuse_or_make_plan(tensors, local_tree)
        compared = self._replica_check.begin_comparison_if_due(
            handle.seq, plan.fingerprint, tensors.pieces, last=on_busy == "wait"
        )
        room = len(extra)
        if compared is not None:
            room += compared.room
        slot = self._pool.acquire(plan.layout, room) or self._wait_for_free_slot_unless_skip(
            plan, handle, room, on_busy
        )
        if slot is None:
            self._replica_check.forget(handle.seq)
            self._agent.send(SaveSkipped(self._snapshot_key_of(handle), NO_SLOT))
            self._saves.skip(handle)
            return None
        origin = self._origin
        if handle.tier != "storage":
            origin = origin.as_memory_only
        slot.start_writing(
            Page(SlotState.FREE, origin, handle.epoch, handle.seq, handle.step, plan.facts(extra)), extra, local_tree
        )
        try:
            return self._start_slot_copy(tensors, plan, slot, handle, compared), slot
        except BaseException:
            slot.free_if_writing()
            raise

    def _reuse_or_make_plan(self, tensors: StateTensors, local_tree: bytes) -> SavePlan:
        plan = self._plan
        if plan is None or not plan.is_reusable_for(tensors, len(local_tree)):
            plan = self._plan = SavePlan(
                tensors,
                rank=self._origin.rank,
                world=self._origin.world,
                run_id=self._origin.run_id,
                algorithm=self._algorithm,
                tree_bytes=len(local_tree),
            )
        return plan

    def _start_slot_copy(
        self,
        tensors: StateTensors,
        plan: SavePlan,
        slot: StagingSlot,
        handle: Handle,
        compared: replica_check.Comparison | None,
    ) -> SlotCopy:
        written = plan.pieces_to_write(tensors)
        pieces = slot.grouped(written)
        guard = CopyGuard(CopiedSources([piece for piece in written if piece.early]), pieces.late_sources)
        device_copies = self._devices.start(
            slot.device_pieces(pieces.device),
            compared.clear_and_request_device_digests() if compared is not None else (),
            guard.record_tensors_changed_on_device,
        )
        early, late = slot.host_copy_batches(pieces.early), slot.host_copy_batches(pieces.late)
        if compared is not None:
            early, late = (
                early + compared.host_digest_batches(early=True),
                late + compared.host_digest_batches(early=False),
            )

        def finish(error: BaseException | None) -> None:
            if error is None:
                self._mark_captured_or_free_and_fail(slot, handle, guard.problem, compared)
            else:
                self._mark_captured_or_free_and_fail(slot, handle, f"the copy failed: {error}", compared)

        if self._overlap:
            self._copier.start(early).help_and_wait()
            guard.record_early_sources_changed_since_start()
            return SlotCopy(self._copier, late, device_copies, guard, finish, background=True)
        return SlotCopy(self._copier, late + early, device_copies, guard, finish, background=False)

    def _mark_captured_or_free_and_fail(
        self, slot: StagingSlot, handle: Handle, problem: str | None, compared: replica_check.Comparison | None
    ) -> None:
        """Free the slot and fail the save, or mark it as captured and tell the agent, when the copy has
        ended, in whatever thread."""
        if problem is not None:
            slot.finish_writing(SlotState.FREE)
            self._fail_save_and_notify_agent(handle, problem)
            return
        slot.finish_writing(
            SlotState.CAPTURED, compared.combined_digests_by_holders() if compared is not None else None
        )
        with self._saves.changed:
            handle.advance(SaveState.CAPTURED)
        self._agent.send(SlotCaptured(slot.number))

    def _fail_save_and_notify_agent(self, handle: Handle, reason: str) -> None:
        """End the save as failed on this rank, and tell the agent.

        The agent then replies `dropped`, which changes nothing: a handle never leaves a final state.
        """
        self._saves.end_without_success(handle, SaveState.FAILED, reason)
        self._agent.send(SaveSkipped(self._snapshot_key_of(handle), reason))

    def _wait_for_free_slot_unless_skip(
        self, plan: SavePlan, handle: Handle, extra: int, on_busy: OnBusy
    ) -> StagingSlot | None:
        if on_busy == "skip":
            return None
        end = float("inf")
        released_before = self._saves.released
        if on_busy == "replace":
            end = time.monotonic() + _RELEASE_SECONDS
            self._agent.send(FreeSlot(self._snapshot_key_of(handle)))
        slot = None
        while slot is None and self._saves.agent_error is None and time.monotonic() < end:
            was_released = self._saves.released != released_before
            slot = self._pool.acquire(plan.layout, extra)
            if slot is None and on_busy == "replace" and was_released:
                return None
            if slot is None:
                if self._saves.stalled is None:
                    self._waiting()
                with self._saves.changed:
                    # Woken by every event; slots are freed a moment after the event, hence the short time.
                    self._saves.changed.wait(_POLL_SECONDS)
        return slot

    def _snapshot_key_of(self, handle: Handle) -> Key:
        return (handle.epoch, handle.seq, self._origin.incarnation)

    # --- end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the running copy, end the copy threads and close the slots."""
        self.fence.close()
        self._copier.close()
        self._pool.close()

    def close_without_waiting(self) -> None:
        """Close the slots without waiting for a copy that may still be running."""
        self._pool.close()

    def stop_threads(self, seconds: float) -> None:
        """Wait until no thread is inside torch any more, `seconds` at most for each kind: the interpreter
        is about to end."""
        self.fence.wait_for_copy_threads(seconds)
        self._copier.close(seconds)
        self._pool.stop_and_join(seconds)
