"""Copy a snapshot into a shared-memory slot. The only copy that training waits for."""

from __future__ import annotations

import os

import torch

from hyperpod_kit.checkpoint import partition
from hyperpod_kit.checkpoint.dtypes import TYPES
from hyperpod_kit.checkpoint.repository import arena, control, digest
from hyperpod_kit.checkpoint.repository.control import Page
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.shard import ShardLayout, lay_out
from hyperpod_kit.checkpoint.snapshot import Snapshot


class Plan:
    """One rank's part of a snapshot: which pieces it writes, laid out how. Depends on specs and layouts only."""

    def __init__(self, snapshot: Snapshot, *, rank: int, world: int, run_id: str, algorithm: str) -> None:
        owners = partition.owner(snapshot.pieces)
        mine = [piece for piece in snapshot.pieces if owners[piece.spec.name] == piece.replica[0]]
        self.outline = snapshot.outline()
        self.fingerprint = snapshot.plan
        self.tensors = snapshot.tensors
        self.first = sum(piece.spec.first and not piece.own for piece in mine)
        self.layout: ShardLayout = lay_out([piece.spec for piece in mine], rank=rank, world=world, run=run_id,
                                           plan=snapshot.plan, algorithm=algorithm)

    def fits(self, snapshot: Snapshot) -> bool:
        return snapshot.plan == self.fingerprint and snapshot.outline() == self.outline


class SlotPool:
    """This rank's slots. One is free for the next save, or none is."""

    def __init__(self, run_id: str, rank: int, count: int) -> None:
        self._folder = arena.shm_dir()
        self._names = [arena.SlotName(os.getuid(), arena.run_hash(run_id), rank, n) for n in range(count)]
        self._slots: dict[int, arena.Slot] = {}
        self._views: dict[int, tuple[str, list[tuple[str, torch.Tensor]]]] = {}

    def acquire(self, layout: ShardLayout, extra: int) -> arena.Slot | None:
        """A FREE slot that fits, made when there are fewer than `count`; None when all are busy.

        Raises NotEnoughSharedMemory, OSError.
        """
        for name in self._names:
            slot = self._slots.get(name.slot) or self._find(name)
            if slot is not None:
                page = slot.page
                if page is not None and page.state != control.FREE:
                    self._slots[name.slot] = slot
                    continue
                if slot.room[0] == layout.size and slot.room[1] >= extra and page is not None:
                    self._slots[name.slot] = slot
                    return slot
                # Of another size, and free: nothing is lost. The new file gets a new mapping.
                self._views.pop(name.slot, None)
                self._slots.pop(name.slot, None)
                slot.unlink()
            made = arena.create(self._folder, name, layout.size, extra_room=max(arena.EXTRA_ROOM, 4 * extra))
            self._slots[name.slot] = made
            return made
        return None

    def _find(self, name: arena.SlotName) -> arena.Slot | None:
        try:
            return arena.attach(self._folder, name)
        except FileNotFoundError:
            return None

    def fill(self, slot: arena.Slot, plan: Plan, snapshot: Snapshot, page: Page, extra: bytes) -> None:
        """FREE -> WRITING -> CAPTURED, with every byte of the shard but its leaves copied in between.

        Raises CheckpointError; then the slot is FREE again.
        """
        slot.put(page.to(control.WRITING))
        try:
            head = plan.layout.header(page.epoch, page.seq, page.step)
            slot.image[:len(head)] = head
            slot.put_extra(extra)
            failpoint("capture.header")
            sources = {piece.spec.name: piece.tensor for piece in snapshot.pieces}
            for name, view in self._tensors(slot, plan.layout):
                view.copy_(sources[name])
                failpoint("capture.tensor")
            slot.move(control.CAPTURED)
            failpoint("capture.done")
        except BaseException:
            slot.move(control.FREE)
            raise

    def _tensors(self, slot: arena.Slot, layout: ShardLayout) -> list[tuple[str, torch.Tensor]]:
        """The image's tensors as views, made once."""
        held = self._views.get(slot.name.slot)
        if held is None or held[0] != layout.fingerprint:
            views = [(p.spec.name, torch.frombuffer(slot.buffer, dtype=torch.uint8, offset=p.begin,
                                                    count=p.end - p.begin).view(TYPES[p.spec.dtype]).view(p.spec.shape))
                     for p in layout.tensors if p.end > p.begin]
            held = (layout.fingerprint, views)
            self._views[slot.name.slot] = held
        return held[1]


def page_for(plan: Plan, *, rank: int, world: int, epoch: int, seq: int, step: int, incarnation: str, run: str,
             run_id: str, root: str, owner: tuple[int, int], job: dict[str, object], algorithm: str,
             extra: bytes) -> Page:
    """The control page of a capture, still FREE."""
    return Page(rank=rank, world=world, epoch=epoch, seq=seq, step=step, incarnation=incarnation, run=run,
                run_id=run_id, root=root, job=job, owner=owner, digest=algorithm, chunk=digest.CHUNK,
                size=plan.layout.size, layout=plan.layout.fingerprint, plan=plan.fingerprint, tensors=plan.first,
                plan_tensors=plan.tensors, extra_size=len(extra), extra_root=digest.small(extra))
