"""Capture from a CUDA device: a side stream copies into the slot, whose memory is registered with the driver. And back:
a restore fills the device's tensors chunk by chunk.

No CI has a GPU: after a change here, `make gpu-check` on a machine with one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from hyperpod_kit.checkpoint import tensor_digest
from hyperpod_kit.checkpoint.agent import shm_slots
from hyperpod_kit.checkpoint.sampled_chunks import SampledChunks

_SMALL = 256 * 1024  # bytes below which a transfer of its own costs more than gathering
_STAGE = 32 * 1024 * 1024  # bytes of pinned memory for gathered small tensors, at most
_registered: dict[int, int] = {}

DevicePiece = tuple[torch.Tensor, torch.Tensor, bool]
"""The view into the slot, the tensor on the device, whether it is early (see TensorPiece)."""

DigestRequest = tuple[torch.Tensor, bool, Callable[[bytes], object]]
"""A tensor on a device, whether it is early (see TensorPiece), and who is told its digest."""

Changed = Callable[[Sequence[torch.Tensor]], object]
"""Who is told of tensors that changed while they were copied."""


def is_on_cuda(tensor: torch.Tensor) -> bool:
    """Return whether the tensor lies on a CUDA device, from which this module copies."""
    return tensor.device.type == "cuda"


def synchronize(tensors: Iterable[torch.Tensor]) -> None:
    """Wait until the CUDA devices of these tensors have done all work enqueued so far, in every
    stream."""
    for which in {tensor.device for tensor in tensors if is_on_cuda(tensor)}:
        torch.cuda.synchronize(which)


def copy_from_host_and_wait(target: torch.Tensor, view: memoryview) -> None:
    """Copy bytes from the host into U8 elements on a device and wait until they are there."""
    target.copy_(torch.frombuffer(view, dtype=torch.uint8))


def _address(slot: shm_slots.Slot) -> int:
    return ctypes.addressof(slot.image_mapping)


def register_slot_with_cuda_driver(slot: shm_slots.Slot) -> bool:
    """Register the slot's memory with the CUDA driver (cudaHostRegister), so that copies need no
    staging; return False if the driver refuses, as it does for files on a disk: Linux pins no pages
    of them that are written to."""
    address = _address(slot)
    if address in _registered:
        return True
    result = torch.cuda.cudart().cudaHostRegister(address, len(slot.image), 0)
    if int(result) == 0:
        _registered[address] = len(slot.image)
    return int(result) == 0


def unregister_slot_from_cuda_driver(slot: shm_slots.Slot) -> None:
    """Unregister a slot's memory from the CUDA driver, if it is registered; before the memory is
    unmapped."""
    if not _registered:
        return
    address = _address(slot)
    if _registered.pop(address, None) is not None:
        torch.cuda.cudart().cudaHostUnregister(address)


class DeviceCopy:
    """Copies from one device that were enqueued on a side stream. `small` are the small tensors, gathered: each
    (view into the slot, its bytes in pinned memory), to be moved on the host after `wait`. `sums` are digests, and who
    is told them. `compared`: called when all bytes are in host memory, to see whether the tensors stayed as they were.
    """

    def __init__(
        self,
        event: Any,
        small: Sequence[tuple[torch.Tensor, torch.Tensor]],
        references: Sequence[Any],
        sums: Sequence[tuple[torch.Tensor, Sequence[DigestRequest]]],
        compared: Callable[[], object],
    ) -> None:
        self._event = event
        self._compared = compared
        self._references = references
        self._sums = sums
        self.small = small

    def wait_then_report_changes_and_digests(self) -> None:
        """Wait until all bytes are in host memory, report tensors that changed meanwhile and deliver the
        digests."""
        self._event.synchronize()
        self._compared()
        for sums, folds in self._sums:
            for (_, _, deliver), row in zip(folds, sums.cpu(), strict=True):
                deliver(row.numpy().tobytes())
        self._references = self._sums = ()

    def block_current_stream(self) -> None:
        """Make the device's current stream, not the host, wait until the copies have read the tensors: an
        optimizer's kernels begin after that."""
        self._event.wait(torch.cuda.current_stream())


class CudaDevice:
    """The side stream and the staging memory of one CUDA device."""

    def __init__(self, which: torch.device) -> None:
        self._stream = torch.cuda.Stream(which)
        self._which = which
        self._stage: torch.Tensor | None = None
        self._chunks = SampledChunks([])

    def start(
        self,
        pieces: Sequence[DevicePiece],
        digest_requests: Sequence[DigestRequest] = (),
        on_changed: Changed = lambda _: None,
    ) -> DeviceCopy:
        """Enqueue copies and digests on the side stream, and return at once.

        The side stream waits for what the current stream was given so far. Early tensors, which the
        next forward pass may change, are cloned or digested first, in the current stream: the fence
        does not guard them. Of the others samples are read before and after; `on_changed` is called
        with those that were written to between.
        """
        chunks = self._get_or_create_sampled_chunks([source for _, source, early in pieces if not early])
        before = chunks.read()
        early, late = (
            [request for request in digest_requests if request[1]],
            [request for request in digest_requests if not request[1]],
        )
        sums = []
        if early:
            sums = [(tensor_digest.digest_tensors([tensor for tensor, _, _ in early]), early)]
        ready = [(view, source.clone() if early else source) for view, source, early in pieces]
        small: list[tuple[torch.Tensor, torch.Tensor]] = []
        large: list[tuple[torch.Tensor, torch.Tensor]] = []
        total = 0
        for view, source in ready:
            if source.nbytes < _SMALL and total + source.nbytes <= _STAGE:
                small.append((view, source))
                total += source.nbytes
            else:
                large.append((view, source))
        self._stream.wait_stream(torch.cuda.current_stream(self._which))
        gathered_small: list[tuple[torch.Tensor, torch.Tensor]] = []
        with torch.cuda.stream(self._stream), torch.no_grad():
            for view, source in large:
                view.copy_(source, non_blocking=True)
            gathered = None
            if small:
                plain = [source.resolve_conj().resolve_neg().contiguous() for _, source in small]
                gathered = torch.cat([source.view(-1).view(torch.uint8) for source in plain])
                stage = self._reusable_pinned_memory(total)
                stage.copy_(gathered, non_blocking=True)
                at = 0
                for view, source in small:
                    gathered_small.append((view, stage[at : at + source.nbytes]))
                    at += source.nbytes
            if late:
                sums.append((tensor_digest.digest_tensors([tensor for tensor, _, _ in late]), late))
            differing = self._enqueue_copy_to_host(chunks.differing(before))
            event = torch.cuda.Event()
            event.record(self._stream)

        def compared() -> None:
            if differing is not None and differing.any():
                on_changed(chunks.changed(differing))

        return DeviceCopy(event, gathered_small, (ready, gathered, digest_requests, before), sums, compared)

    def _get_or_create_sampled_chunks(self, tensors: Sequence[torch.Tensor]) -> SampledChunks:
        if not self._chunks.is_for_tensors(tensors):
            self._chunks = SampledChunks(tensors)
        return self._chunks

    def _enqueue_copy_to_host(self, differing: torch.Tensor | None) -> torch.Tensor | None:
        """Enqueue a copy of the flags into pinned host memory."""
        if differing is None:
            return None
        return torch.empty(differing.shape, dtype=torch.bool, pin_memory=True, device="cpu").copy_(
            differing, non_blocking=True
        )

    def _reusable_pinned_memory(self, size: int) -> torch.Tensor:
        if self._stage is None or self._stage.numel() < size:
            self._stage = torch.empty(size, dtype=torch.uint8, pin_memory=True, device="cpu")
        return self._stage[:size]


class Devices:
    """All devices from which this process copies."""

    def __init__(self) -> None:
        self._devices: dict[torch.device, CudaDevice] = {}

    def start(
        self,
        pieces: Sequence[DevicePiece],
        digest_requests: Sequence[DigestRequest] = (),
        on_changed: Changed = lambda _: None,
    ) -> list[DeviceCopy]:
        """Call `CudaDevice.start` for each device that has a piece or a digest request."""
        devices = dict.fromkeys(
            [piece[1].device for piece in pieces] + [request[0].device for request in digest_requests]
        )
        return [
            self._get_or_create(which).start(
                [piece for piece in pieces if piece[1].device == which],
                [request for request in digest_requests if request[0].device == which],
                on_changed,
            )
            for which in devices
        ]

    def _get_or_create(self, which: torch.device) -> CudaDevice:
        if which not in self._devices:
            self._devices[which] = CudaDevice(which)
        return self._devices[which]
