"""What a save writes where: one rank's part of a snapshot, and the copy of it into a slot."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from hyperpod_kit.checkpoint import copier, device, replica_assignment
from hyperpod_kit.checkpoint.agent import replicas, shm_slots
from hyperpod_kit.checkpoint.agent.control_page import Page, ShardFacts, SlotState
from hyperpod_kit.checkpoint.dtypes import TYPES
from hyperpod_kit.checkpoint.repository import digest
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.shard import ShardLayout, lay_out
from hyperpod_kit.checkpoint.snapshot import Snapshot, TensorPiece


class CapturePlan:
    """One rank's part of a snapshot: which pieces it writes, laid out how. Depends on specs and layouts only."""

    def __init__(self, snapshot: Snapshot, *, rank: int, world: int, run_id: str, algorithm: str) -> None:
        owners = replica_assignment.owner(snapshot.pieces)
        self.mine = tuple(n for n, piece in enumerate(snapshot.pieces) if owners[piece.spec.name] == piece.replica[0])
        mine = [snapshot.pieces[n] for n in self.mine]
        self.outline = snapshot.outline
        self.fingerprint = snapshot.plan
        self.tensors = snapshot.tensors
        self.first = sum(piece.spec.first and not piece.own for piece in mine)
        self.algorithm = algorithm
        self.layout: ShardLayout = lay_out(
            [piece.spec for piece in mine], rank=rank, world=world, run=run_id, plan=snapshot.plan, algorithm=algorithm
        )

    def fits(self, snapshot: Snapshot) -> bool:
        return snapshot.outline is self.outline or (
            snapshot.outline == self.outline and snapshot.plan == self.fingerprint
        )

    def facts(self, extra: bytes) -> ShardFacts:
        """What the control page says of the shard; its digest is still unknown."""
        return ShardFacts(
            digest=self.algorithm,
            chunk=digest.CHUNK,
            size=self.layout.size,
            layout=self.layout.fingerprint,
            plan=self.fingerprint,
            tensors=self.first,
            plan_tensors=self.tensors,
            extra_size=len(extra),
            extra_root=digest.small(extra),
        )


class Target:
    """A slot with the image's tensors as views, made once for a layout."""

    def __init__(self, slot: shm_slots.Slot, layout: ShardLayout) -> None:
        self.slot = slot
        self.layout = layout
        self.views: dict[str, torch.Tensor] = {}
        self._extra = b""
        for placed in layout.tensors:
            if placed.end > placed.begin:
                raw = torch.frombuffer(
                    slot.buffer, dtype=torch.uint8, offset=placed.begin, count=placed.end - placed.begin
                )
                self.views[placed.spec.name] = raw.view(TYPES[placed.spec.dtype]).view(placed.spec.shape)
        # Of the last save: its pieces that are not early, those of them here and on a device, the work for the former.
        self._late: list[TensorPiece] = []
        self._here: list[TensorPiece] = []
        self._far: list[TensorPiece] = []
        self._work: list[copier.Batch] | None = None

    def begin(self, page: Page, extra: bytes) -> None:
        """FREE -> WRITING, with the header and the non-tensor state in place. Raises CheckpointError."""
        failpoint("capture.begin")
        self.slot.put(page.to(SlotState.WRITING))
        head = self.layout.header(page.epoch, page.seq, page.step)
        self.slot.image[: len(head)] = head
        self.slot.put_extra(extra)
        self._extra = extra
        failpoint("capture.header")

    def end(self, state: SlotState, held: replicas.Replicas | None = None) -> None:
        """WRITING -> CAPTURED, or FREE when the copy failed. `held`: of a save that compares, see replicas."""
        failpoint("capture.before_page")
        if held:
            extra = replicas.with_replicas(self._extra, held)
            self.slot.put_extra(extra)
            self.slot.move(state, extra_size=len(extra), extra_root=digest.small(extra))
        else:
            self.slot.move(state)
        failpoint("capture.done")

    def work(self, pieces: Sequence[TensorPiece]) -> list[copier.Batch]:
        """The copies of these pieces from host memory."""
        if pieces is self._here and self._work is not None:
            return self._work
        made = copier.batches(
            [
                copier.Move(self.views[piece.spec.name], piece.tensor)
                for piece in pieces
                if piece.spec.name in self.views
            ]
        )
        if pieces is self._here:
            self._work = made
        return made

    def split(self, pieces: Sequence[TensorPiece]) -> tuple[list[TensorPiece], list[TensorPiece], list[TensorPiece]]:
        """(early ones, late ones, those on a device). The late ones are likely to be the same objects each time."""
        early = [piece for piece in pieces if piece.early]
        late = [piece for piece in pieces if not piece.early]
        if len(late) != len(self._late) or not all(map(operator.is_, late, self._late)):
            self._late, self._work = late, None
            self._here = [piece for piece in late if not device.is_on(piece.tensor)]
            self._far = [piece for piece in late if device.is_on(piece.tensor)]
        return (
            [piece for piece in early if not device.is_on(piece.tensor)],
            self._here,
            [piece for piece in early if device.is_on(piece.tensor)] + self._far,
        )
