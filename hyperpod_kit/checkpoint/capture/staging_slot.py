"""A slot of shared memory as the place that a rank's tensors are copied to."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch

from hyperpod_kit.checkpoint.agent.reports import replicas
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Page, SlotState
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.format.shard import ShardLayout
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.checkpoint.state.tensors import TensorPiece
from hyperpod_kit.checkpoint.transfer import device, memory_copy, tensor_memory
from hyperpod_kit.checkpoint.transfer.copied_sources import CopiedSources


class PieceGroups(NamedTuple):
    """Pieces in host memory, copied before the save returns (`early`) or at the latest before the next optimizer's step
    (`late`), and pieces on a device. `late_sources`: of all that are late."""

    early: list[TensorPiece]
    late: list[TensorPiece]
    device: list[TensorPiece]
    late_sources: CopiedSources


class StagingSlot:
    """`memory` with the places of a layout's tensors in its image."""

    def __init__(self, memory: shm_slots.Slot, layout: ShardLayout) -> None:
        self.memory = memory
        self.layout = layout
        self._image = memory.image_mapping  # copies hold addresses in it: it stays mapped as long as this slot is used
        self._offsets = {placed.spec.name: placed.begin for placed in layout.tensors if placed.end > placed.begin}
        """Of each tensor that has bytes."""
        self._device_views: dict[str, torch.Tensor] = {}
        """The views that copies from a device go to, by name: made in the first save."""
        self._extra = b""
        # Of the last save: its pieces that are not early, the same in groups, and the batches for those in host memory.
        self._late: list[TensorPiece] = []
        self._grouped = PieceGroups([], [], [], CopiedSources([]))
        self._batches: list[memory_copy.Batch] | None = None

    @property
    def number(self) -> int:
        return self.memory.name.slot

    def start_writing(self, page: Page, extra: bytes, local_tree: bytes = b"") -> None:
        """Move the slot from FREE to WRITING, which is the state of the save's new `page`, with the header and
        the non-tensor state in place, of which `local_tree` lies in the shard. Raises CheckpointError."""
        failpoint("capture.begin")
        self.memory.write_page(page)
        head = self.layout.header(page.epoch, page.seq, page.step)
        self.memory.image[: len(head)] = head
        begin, end = self.layout.tree
        self.memory.image[begin:end] = local_tree.ljust(end - begin)
        self.memory.write_extra(extra)
        self._extra = extra
        failpoint("capture.header")

    def free_if_writing(self) -> None:
        """Move the slot from WRITING back to FREE, where `start_writing` came so far."""
        page = self.memory.page
        if page is not None and page.state == SlotState.WRITING:
            self.finish_writing(SlotState.FREE)

    def finish_writing(self, state: SlotState, digests: replicas.Replicas | None = None) -> None:
        """Move the slot from WRITING to CAPTURED, or to FREE when the copy failed, with the replica
        `digests` of a save that compares."""
        failpoint("capture.before_page")
        if digests:
            extra = replicas.append_replica_digests(self._extra, digests)
            self.memory.write_extra(extra)
            self.memory.transition(state, extra_size=len(extra), extra_root=digest.small_object_digest(extra))
        else:
            self.memory.transition(state)
        failpoint("capture.done")

    def grouped(self, pieces: Sequence[TensorPiece]) -> PieceGroups:
        """Group pieces into early, late and on a device; the late ones in host memory are kept from the
        last save where they are the same objects."""
        early = [piece for piece in pieces if piece.early]
        late = [piece for piece in pieces if not piece.early]
        if len(late) != len(self._late) or not all(map(operator.is_, late, self._late)):
            self._late, self._batches = late, None
            self._grouped = PieceGroups(
                [],
                [piece for piece in late if not tensor_memory.is_on_cuda(piece.tensor)],
                [piece for piece in late if tensor_memory.is_on_cuda(piece.tensor)],
                CopiedSources(late),
            )
        return PieceGroups(
            [piece for piece in early if not tensor_memory.is_on_cuda(piece.tensor)],
            self._grouped.late,
            [piece for piece in early if tensor_memory.is_on_cuda(piece.tensor)] + self._grouped.device,
            self._grouped.late_sources,
        )

    def host_copy_batches(self, pieces: Sequence[TensorPiece]) -> list[memory_copy.Batch]:
        """Return the batches that copy these pieces from host memory into the slot; those of the late
        pieces are made once."""
        if pieces is self._grouped.late and self._batches is not None:
            return self._batches
        image, offsets = self._image_address, self._offsets
        host_batches = memory_copy.cut_and_group_into_batches(
            [
                memory_copy.TensorCopy(image + offsets[piece.spec.name], piece.tensor)
                for piece in pieces
                if piece.spec.name in offsets
            ],
            lambda copy: self._view(copy.target - image, copy.source),
        )
        if pieces is self._grouped.late:
            self._batches = host_batches
        return host_batches

    def device_pieces(self, pieces: Sequence[TensorPiece]) -> list[device.DevicePiece]:
        """Return these pieces, on devices, with the views of the slot that they are copied to."""
        return [
            (self._view_once_made(piece), piece.tensor, piece.early)
            for piece in pieces
            if piece.spec.name in self._offsets
        ]

    def _view_once_made(self, piece: TensorPiece) -> torch.Tensor:
        name = piece.spec.name
        if name not in self._device_views:
            self._device_views[name] = self._view(self._offsets[name], piece.tensor)
        return self._device_views[name]

    @property
    def _image_address(self) -> int:
        return ctypes.addressof(self._image)

    def _view(self, offset: int, like: torch.Tensor) -> torch.Tensor:
        """Return the part of the image at `offset` as a tensor of the type and shape of `like`."""
        raw = torch.frombuffer(self._image, dtype=torch.uint8, offset=offset, count=like.nbytes)
        return raw.view(like.dtype).view(like.shape)
