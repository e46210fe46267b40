"""Stage a save: from the state's tensors to a captured slot, of which the agent is told."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import FreeSlot, SaveSkipped, SlotCaptured
from hyperpod_kit.checkpoint.agent.reports.save_failures import NO_SLOT
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Key, Page, ShardFacts, SlotState
from hyperpod_kit.checkpoint.agent_client.agent_supervisor import AgentSupervisor
from hyperpod_kit.checkpoint.capture import replica_assignment, replica_check
from hyperpod_kit.checkpoint.capture.slots import SlotPool
from hyperpod_kit.checkpoint.capture.staging_slot import StagingSlot
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.format.shard import ShardLayout, lay_out
from hyperpod_kit.checkpoint.repository.read import rank_extra_state
from hyperpod_kit.checkpoint.saves.arguments import OnBusy
from hyperpod_kit.checkpoint.saves.handle import Handle, SaveState
from hyperpod_kit.checkpoint.saves.saves import Saves
from hyperpod_kit.checkpoint.state.state import State
from hyperpod_kit.checkpoint.state.tensors import StateTensors
from hyperpod_kit.checkpoint.transfer import device, memory_copy, tensor_memory
from hyperpod_kit.checkpoint.transfer.copied_sources import CopiedSources, CopyGuard
from hyperpod_kit.checkpoint.transfer.device import DeviceCopy
from hyperpod_kit.checkpoint.transfer.memory_copy import Batch, Copier, CopyRun

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
            pin=any(tensor_memory.is_on_cuda(piece.tensor) for piece in tensors.pieces),
        )

    def _needed_layout_and_extra_bytes(self, tensors: StateTensors) -> tuple[ShardLayout, int]:
        extra, local_tree = codec.serialize_whole_tree_and_shard_part(tensors.tree, tensors.shard_keys)
        return self._reuse_or_make_plan(tensors, local_tree).layout, len(extra)

    def stage(self, tensors: StateTensors, handle: Handle, on_busy: OnBusy, state: State) -> bool:
        """Copy the tensors of the state into a slot; return False when none is free. An error ends this save as
        failed and is raised."""
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
            if self._overlap and self.fence.install_step_hooks_unless_no_optimizer(state.optimizers):
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
        extra, local_tree = codec.serialize_whole_tree_and_shard_part(tensors.tree, tensors.shard_keys)
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
        facts = plan.facts._replace(extra_size=len(extra), extra_root=digest.small_object_digest(extra))
        page = Page(SlotState.WRITING, origin, handle.epoch, handle.seq, handle.step, facts)
        slot.start_writing(page, extra, local_tree)
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
        written = [tensors.pieces[number] for number in plan.written_pieces]
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


# What a save writes where: which of the state's tensors this rank writes, and their places in its shard.


class SavePlan:
    """One rank's part of every save of such tensors. Depends on their specs and layouts only."""

    def __init__(
        self, tensors: StateTensors, *, rank: int, world: int, run_id: str, algorithm: str, tree_bytes: int = 0
    ) -> None:
        """`tree_bytes`: bytes of the rank's own tree, which is to lie in the shard."""
        owners = replica_assignment.assign_writing_replica_indexes(tensors.pieces)
        self.written_pieces = tuple(
            number for number, piece in enumerate(tensors.pieces) if owners[piece.spec.name] == piece.replica[0]
        )
        """The numbers of those pieces that this rank writes."""
        pieces = [tensors.pieces[number] for number in self.written_pieces]
        self._outline = tensors.outline
        self.fingerprint = tensors.plan
        self.layout: ShardLayout = lay_out(
            [piece.spec for piece in pieces],
            rank=rank,
            world=world,
            run_id=run_id,
            plan=tensors.plan,
            algorithm=algorithm,
            tree_bytes=rank_extra_state.reserved_bytes_with_growth_room(tree_bytes),
        )
        self.facts = ShardFacts(
            digest=algorithm,
            chunk=digest.CHUNK,
            size=self.layout.size,
            layout=self.layout.fingerprint,
            plan=self.fingerprint,
            tensors=sum(piece.spec.is_at_origin and not piece.is_per_rank for piece in pieces),
            plan_tensors=tensors.shared,
        )
        """What the control page says of the shard of each such save, without its digest and its extra state."""

    def is_reusable_for(self, tensors: StateTensors, tree_bytes: int = 0) -> bool:
        begin, end = self.layout.tree
        return tree_bytes <= end - begin and (
            tensors.outline is self._outline or (tensors.outline == self._outline and tensors.plan == self.fingerprint)
        )


# The fence that keeps an optimizer from changing what is still being copied.

_COPY_POLL_SECONDS = 0.005


class Fence:
    """The copy of the last overlapped save, and the optimizers that wait for it before they step."""

    def __init__(self) -> None:
        self._running: tuple[SlotCopy, Handle] | None = None
        self._passed = True
        self._watched: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._hooks: list[Any] = []

    def install_step_hooks_unless_no_optimizer(self, optimizers: Iterable[torch.optim.Optimizer]) -> bool:
        """Install a hook on each optimizer that makes it wait for the fence before its step; return False
        when there is no optimizer."""
        has_optimizer = False
        for optimizer in optimizers:
            has_optimizer = True
            if optimizer not in self._watched:
                self._watched.add(optimizer)
                self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.wait_until_sources_free()))
        return has_optimizer

    def track(self, copy: SlotCopy, handle: Handle) -> None:
        self._running, self._passed = (copy, handle), False

    def wait_until_sources_free(self) -> None:
        """Wait until the tensors may change. The time is added to the save's `stall_ms`; a failure is
        written to its handle."""
        if self._passed or self._running is None:
            return
        begin = time.perf_counter()
        copy, handle = self._running
        try:
            copy.wait_until_sources_free()
        except Exception:
            handle.reason = handle.reason or "the copy failed"
        self._passed = True
        handle.stall_ms += (time.perf_counter() - begin) * 1000.0

    def wait_until_captured(self) -> None:
        """Wait until the last overlapped save is captured, or has failed, and forget it."""
        self.wait_until_sources_free()
        if self._running is not None:
            copy, handle = self._running
            self._running = None
            try:
                copy.wait()
            except Exception:
                handle.reason = handle.reason or "the copy failed"

    def wait_for_copy_threads(self, seconds: float) -> None:
        """Wait until no thread copies any more, `seconds` at most: the interpreter is about to end."""
        end = time.monotonic() + seconds
        while self._running is not None and not self._running[0].ended and time.monotonic() < end:
            time.sleep(_COPY_POLL_SECONDS)

    def close(self) -> None:
        self.wait_until_captured()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


# A copy into a slot, by threads of the host and by devices.


class SlotCopy:
    """The copy of one save's tensors into its slot, from its begin to its end.

    `guard` looks at the sources once more before they may change. `finish(error)` is called once, by the thread that
    ends last.
    """

    def __init__(
        self,
        copier: Copier,
        batches: Sequence[Batch],
        device_copies: Sequence[DeviceCopy],
        guard: CopyGuard,
        finish: Callable[[BaseException | None], None],
        *,
        background: bool,
    ) -> None:
        self._device_copies = device_copies
        self._lock = threading.Lock()
        self._open = 1 + bool(device_copies)
        self._guard = guard
        self._finish = finish
        self._error: BaseException | None = None
        small: list[Batch] = [
            [(copy.wait_then_report_changes_and_digests, ())]
            + [(torch.Tensor.copy_, (view.view(-1).view(torch.uint8), data)) for view, data in copy.small]
            for copy in device_copies
        ]
        # The host's copies first: a thread that waits for a device copies nothing else meanwhile.
        self._host_run: CopyRun = copier.start(batches, self._finish_after_last_run, background=background)
        if device_copies:
            self._device_run: CopyRun | None = copier.start(small, self._finish_after_last_run, background=background)
        else:
            self._device_run = None

    def _finish_after_last_run(self, error: BaseException | None) -> None:
        with self._lock:
            self._open -= 1
            self._error = self._error or error
            last = self._open == 0
        if not last:
            return
        try:
            self._guard.record_all_sources_changed_since_start()
        except Exception as err:  # whatever it is, the slot has to become free
            self._error = self._error or err
        self._finish(self._error)

    def wait_until_sources_free(self) -> None:
        """Wait until nothing reads the tensors any more; for tensors on a device only the device waits.
        Raises what failed."""
        self._host_run.help_and_wait()
        self._guard.record_all_sources_changed_since_start()
        for copy in self._device_copies:
            copy.block_current_stream()

    def wait(self) -> None:
        """Wait until everything is in the slot. Raises what failed."""
        self._host_run.help_and_wait()
        if self._device_run is not None:
            self._device_run.help_and_wait()

    @property
    def ended(self) -> bool:
        return self._host_run.ended and (self._device_run is None or self._device_run.ended)
