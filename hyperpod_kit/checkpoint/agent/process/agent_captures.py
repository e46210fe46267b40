"""What one agent holds: its captures in memory, how far each is on its way, and when a slot may be given back."""

from __future__ import annotations

import os
import sys
import threading
from typing import Dict, FrozenSet, Iterator, List, Optional, Set, Tuple

from hyperpod_kit.checkpoint.agent.persist.local import Part
from hyperpod_kit.checkpoint.agent.persist.seal import SlotShard
from hyperpod_kit.checkpoint.agent.protocol.message import CaptureOutcome
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import CheckpointError

_ON_STORAGE = frozenset({"check", "clear"})
"""What is done for a capture without reading its slot."""


class Capture:
    """One capture. `outcome` is None until it is on every node's disk or has had an end; `jobs` names what is done
    with it: "seal", "write", "upload", and in rank 0's agent "check", "clear" and "commit".

    It lies in a slot (as `shard`), or on the node's disk (as `part`), or in both.
    """

    def __init__(
        self, page: Page, checkpoint_id: str, *, shard: Optional[SlotShard] = None, part: Optional[Part] = None
    ) -> None:
        self.key = page.key
        self.memory = page.is_memory_only
        """It need not go to storage."""
        self.shard = shard
        self.slot: Optional[shm_slots.Slot] = shard.slot if shard is not None else None
        self.part = part
        self.checkpoint_id = checkpoint_id
        self.outcome: Optional[CaptureOutcome] = None
        self.report: Optional[Report] = None
        """What is said of this rank's shard, which is on storage."""
        self.is_sealed_by_all = False
        """Every rank has sealed it: it can be restored from memory."""
        self.jobs: Set[str] = set()
        self._lock = threading.Lock()
        self._claim = ""

    def claim_for_writing(self) -> bool:
        """Claim the capture for the calling thread, which is about to write it; return False when the write was
        cancelled before."""
        return self._claim_as("begun")

    def cancel_unstarted_write(self) -> bool:
        """Prevent that any thread starts to write the capture; return False when one has started."""
        return self._claim_as("withdrawn")

    def _claim_as(self, claim: str) -> bool:
        with self._lock:
            self._claim = self._claim or claim
            return self._claim == claim

    @property
    def ended(self) -> bool:
        return self.outcome is not None and self.outcome.is_end

    @property
    def state_text(self) -> str:
        """For people."""
        if self.outcome is not None:
            return self.outcome.value
        if self.is_sealed_by_all:
            return "sealed by all"
        return "captured"


class SlotFiles:
    """This rank's slots on the node, each mapped once: a second mapping would cost page faults and descriptors."""

    def __init__(self, folder: str, run: str, rank: int, incarnation: str) -> None:
        """`incarnation`: of the start that this agent is of."""
        self.folder = folder
        self._slot_prefix = (shm_paths.node_uid(), run, rank)
        self._incarnation = incarnation
        self._mapped: Dict[shm_slots.SlotName, Tuple[int, shm_slots.Slot]] = {}

    def names(self) -> List[shm_slots.SlotName]:
        uid, run, rank = self._slot_prefix
        return shm_slots.own_slot_names(self.folder, uid=uid, run=run, rank=rank)

    def get(self, number: int) -> shm_slots.Slot:
        """Return the slot of that number, mapped once.

        Raises FileNotFoundError, CheckpointError when it is no slot, OSError.
        """
        return self._get(shm_slots.SlotName(*self._slot_prefix, number))

    def _get(self, name: shm_slots.SlotName) -> shm_slots.Slot:
        inode = os.stat(os.path.join(self.folder, name.file("img"))).st_ino
        cached = self._mapped.get(name)
        if cached is not None and cached[0] != inode:
            # The trainer has made it anew, in another size: it does so with free slots only.
            cached[1].close()
            cached = None
        if cached is None:
            cached = self._mapped[name] = (inode, shm_slots.attach(self.folder, name))
        return cached[1]

    def iter_mappable_slots(self) -> Iterator[shm_slots.Slot]:
        """Those that can be mapped; damaged or vanished ones are passed over."""
        for name in self.names():
            try:
                yield self._get(name)
            except (OSError, CheckpointError):
                continue

    def seal_or_free_leftover_slots(self, *, live_incarnation: str = "") -> None:
        """Seal what a dead trainer captured, free what it had copied in part, and remove damaged slots and stray
        images.

        Sealed slots stay as they are, and so do those of the incarnation `live_incarnation`, whose trainer
        lives.
        """
        for name in self.names():
            shm_slots.is_without_control_page_removing_image(self.folder, name)
        for slot in self.iter_mappable_slots():
            page = slot.page
            if page is None:
                slot.unlink()
            elif live_incarnation and page.origin.incarnation == live_incarnation:
                continue
            elif page.state == SlotState.WRITING:
                slot.transition(SlotState.FREE)
            elif page.state == SlotState.CAPTURED:
                try:
                    SlotShard(slot).seal()
                except CheckpointError as err:
                    print(f"{slot.name}: {err}", file=sys.stderr, flush=True)
            failpoint("agent.adopted")

    def free_earlier_starts(self, keep: Optional[Key]) -> None:
        """See snapshot_registry.HeldSnapshots."""
        for slot in self.iter_mappable_slots():
            page = slot.page
            # The trainer does not wait for this: a capture of this start may be there already.
            if page is None or page.state != SlotState.SEALED or page.origin.incarnation == self._incarnation:
                continue
            if page.key != keep:
                slot.transition(SlotState.FREE)
                failpoint("agent.settled")

    def remove_all(self) -> None:
        """See snapshot_registry.HeldSnapshots."""
        for name in self.names():
            shm_slots.remove(self.folder, name)


class Captures:
    """The captures by key. Only the agent's main thread adds, ends and frees them."""

    def __init__(self) -> None:
        self._captures: Dict[Key, Capture] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._captures

    def __iter__(self) -> Iterator[Capture]:
        return iter(list(self._captures.values()))

    def get(self, key: Key) -> Optional[Capture]:
        return self._captures.get(key)

    def add(self, capture: Capture) -> Capture:
        self._captures[capture.key] = capture
        return capture

    @property
    def is_any_worked_at(self) -> bool:
        return any(capture.jobs for capture in self._captures.values())

    def is_any_busy_with(self, kind_of_work: str) -> bool:
        return any(kind_of_work in capture.jobs for capture in self._captures.values())

    def captures_only_in_memory(self) -> List[Capture]:
        """Those that are nowhere but in memory."""
        return [
            capture for capture in self if capture.slot is not None and capture.outcome in (None, CaptureOutcome.FAILED)
        ]

    def local_checkpoint_ids_awaiting_upload(self) -> FrozenSet[str]:
        """Return the ids of local checkpoints of which this rank's part may still be uploaded."""
        return frozenset(
            capture.part.checkpoint_id for capture in self if capture.part is not None and not capture.ended
        )

    def _newest_sealed_by_all(self) -> Optional[Key]:
        return max(
            (key for key, capture in self._captures.items() if capture.is_sealed_by_all and capture.slot is not None),
            default=None,
        )

    def free_unneeded_slots_and_forget_ended(self) -> None:
        """Free what memory need not hold any more: what is of no use, and what has had its end *and* has a successor
        that all ranks have sealed. A shard that is written is no end: an agent that dies before the commit takes its
        report along, and the next one finds the capture in its slot alone."""
        newest = self._newest_sealed_by_all()
        for capture in self:
            older = newest is not None and capture.key < newest
            if (
                capture.jobs <= _ON_STORAGE
                and capture.outcome is not None
                and (older or capture.outcome.is_dropped_or_refused)
            ):
                self._free_slot_of(capture)
            if capture.slot is None and capture.ended:
                del self._captures[capture.key]

    def free_oldest_superseded_slot(self) -> Optional[Capture]:
        """Free the oldest slot that a new save may take: sealed, not being written, and a newer one is sealed by all.

        Returns what was given up, without its slot. None when there is no such slot.
        """
        newest = self._newest_sealed_by_all()
        for key in sorted(self._captures):
            capture = self._captures[key]
            if capture.slot is None or capture.shard is None or capture.shard.page.state != SlotState.SEALED:
                continue
            if (
                newest is not None
                and key < newest
                and capture.jobs - _ON_STORAGE <= {"write"}
                and capture.cancel_unstarted_write()
            ):
                self._free_slot_of(capture)
                return capture
        return None

    def _free_slot_of(self, capture: Capture) -> None:
        if capture.slot is not None:
            failpoint("agent.before_free")
            capture.slot.transition(SlotState.FREE)
            capture.slot = None
            failpoint("agent.after_free")
