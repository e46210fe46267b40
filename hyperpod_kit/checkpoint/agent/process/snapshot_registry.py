"""How captures come to an agent: from its trainer, from an agent that died before it, from an earlier start."""

from __future__ import annotations

from typing import Callable, Mapping, Optional, Protocol, Sequence

from hyperpod_kit.checkpoint.agent.partner.partner_copies import PartnerCopies
from hyperpod_kit.checkpoint.agent.persist.local import Part
from hyperpod_kit.checkpoint.agent.persist.seal import SlotShard
from hyperpod_kit.checkpoint.agent.process.agent_captures import Capture, Captures, SlotFiles
from hyperpod_kit.checkpoint.agent.process.agent_events import SealResult
from hyperpod_kit.checkpoint.agent.process.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.process.worker import Worker
from hyperpod_kit.checkpoint.agent.protocol.message import CaptureOutcome
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import RankCaptured, RankReport, RankSealed, RankSkipped
from hyperpod_kit.checkpoint.agent.protocol.setup import AgentSetup
from hyperpod_kit.checkpoint.agent.reports import replicas, save_failures
from hyperpod_kit.checkpoint.agent.shm import node_tiers, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.system.process import is_alive


class HeldSnapshots(Protocol):
    """What an agent holds of one tier in its node's shared memory."""

    def free_earlier_starts(self, keep: Optional[Key]) -> None:
        """Free what earlier starts of the run have left, but the snapshot `keep`. Raises OSError."""

    def remove_all(self) -> None:
        """Remove all of the run. Raises OSError."""


class SnapshotRegistry:
    """From slots and local parts to `captures`. `is_restored`: it is known what becomes of earlier starts' captures."""

    def __init__(
        self,
        setup: AgentSetup,
        captures: Captures,
        storage: Storage,
        sealer: Worker,
        copies: PartnerCopies,
        report: Callable[[RankReport], None],
    ) -> None:
        self._setup, self._storage = setup, storage
        self._captures, self._sealer, self._copies, self._report = captures, sealer, copies, report
        self.files = SlotFiles(setup.folder, setup.run_hash, setup.rank, setup.incarnation)
        holders: Mapping[node_tiers.NodeTier, HeldSnapshots]
        holders = {node_tiers.MEMORY: self.files, node_tiers.PARTNER: copies}
        self._holders = node_tiers.require_handler_for_each("the agent", holders)
        self.is_restored = False

    def seal_or_free_leftover_slots(self) -> None:
        """Seal or free what a dead trainer left in the slots, see `SlotFiles.seal_or_free_leftover_slots`."""
        self.files.seal_or_free_leftover_slots(live_incarnation=self._setup.incarnation if self._setup.again else "")

    # --- from the trainer ---------------------------------------------------------------------------------------

    def register_and_seal_slot(self, number: int) -> None:
        """Register the capture in the slot of that number, and have it sealed."""
        self._register_and_seal(self.files.get(number))

    def register_unannounced_and_free_partial(self) -> None:
        """Register the captures that a dead trainer did not announce, and free what it had copied in part."""
        for slot in self.files.iter_mappable_slots():
            page = slot.page
            if page is not None and page.state == SlotState.WRITING and not is_alive(page.origin.trainer):
                slot.transition(SlotState.FREE)
            self._register_and_seal(slot)

    def _register_and_seal(self, slot: shm_slots.Slot) -> None:
        page = slot.page
        if page is None or page.state != SlotState.CAPTURED or page.key in self._captures:
            return
        failpoint("agent.captured")
        shard = SlotShard(slot)
        capture = self._captures.add(Capture(page, self._checkpoint_id(page), shard=shard))
        capture.jobs.add("seal")
        self._sealer.submit(SealResult, page.key, self._copies.seal_and_copy_job(shard))
        self._report(RankCaptured(page.key, False, replicas.digests_by_holders_in_slot(slot), page.is_memory_only))

    def give_up_oldest_superseded(self) -> Optional[int]:
        """Give up a capture for a newer save; the number of the slot that is free now, None when there is none."""
        capture = self._captures.free_oldest_superseded_slot()
        if capture is None or capture.shard is None:
            return None
        self._report(RankSkipped(capture.key, save_failures.REPLACED))
        return capture.shard.slot.name.slot

    # --- what a predecessor left --------------------------------------------------------------------------------

    def resume_restored_and_free_other_captures(self, keep: Optional[Key], *, from_local_disk: bool) -> None:
        """The run has restored: keep the capture that it came from until a newer one is sealed, free the rest."""
        self.is_restored = True
        for holder in self._holders:
            holder.free_earlier_starts(keep)
        if from_local_disk or self._setup.again:
            parts = self._storage.list_local_parts()
        else:
            parts = ()
        for slot in self.files.iter_mappable_slots():
            page = slot.page
            if page is None or page.state != SlotState.SEALED or self._is_of_this_start(page):
                continue
            if page.key == keep and page.key not in self._captures:
                part = None
                if self._setup.again:
                    part = _find_part(parts, page.key)
                capture = Capture(page, self._checkpoint_id(page), shard=SlotShard(slot), part=part)
                capture.memory = False  # what a run goes on from belongs on storage
                self._resume_capture(capture, durable=page.durable)
            failpoint("agent.settled")
        if keep is not None and keep not in self._captures and from_local_disk:
            for part in parts:
                page = part.report.page
                if page.key == keep and keep not in self._captures and page.origin.world == self._setup.world:
                    self._resume_capture(Capture(page, self._checkpoint_id(page), part=part), durable=False)
        self._captures.free_unneeded_slots_and_forget_ended()

    def remove_all_held(self) -> None:
        """Remove all that this agent holds in shared memory. Raises OSError."""
        for holder in self._holders:
            holder.remove_all()

    def resume_captures(self) -> None:
        """Go on with what this start has captured and a dead agent of it did not bring to its end."""
        parts = self._storage.list_local_parts()
        for slot in sorted(
            self.files.iter_mappable_slots(), key=lambda slot: slot.page.seq if slot.page is not None else 0
        ):
            page = slot.page
            if page is None or not self._is_of_this_start(page) or page.key in self._captures:
                continue
            if page.state == SlotState.SEALED:
                capture = Capture(
                    page, self._checkpoint_id(page), shard=SlotShard(slot), part=_find_part(parts, page.key)
                )
                self._resume_capture(capture, durable=page.durable)
            else:
                self._register_and_seal(slot)
        self._captures.free_unneeded_slots_and_forget_ended()

    def _resume_capture(self, capture: Capture, *, durable: bool) -> None:
        """Go on with a capture of an earlier start."""
        self._captures.add(capture)
        if durable:
            # Who told it so is gone: nobody will say again that every rank has sealed it, which freed what is older.
            capture.outcome, capture.is_sealed_by_all = CaptureOutcome.DURABLE, True
            return
        replica_digests = None
        if capture.slot is not None and self._setup.again:
            replica_digests = replicas.digests_by_holders_in_slot(capture.slot)
        self._report(RankCaptured(capture.key, True, replica_digests, capture.memory))
        self._report(RankSealed(capture.key))

    def _is_of_this_start(self, page: Page) -> bool:
        return page.origin.incarnation == self._setup.incarnation

    def _checkpoint_id(self, page: Page) -> str:
        """The attempt that this start writes a capture to: all its agents name it alike, and no earlier start did."""
        return page.checkpoint_id(self._setup.incarnation)


def _find_part(parts: Sequence[Part], key: Key) -> Optional[Part]:
    """What a dead agent of this start has brought to the node's disk."""
    return next((part for part in parts if part.report.page.key == key), None)
