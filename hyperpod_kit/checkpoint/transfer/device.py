"""Capture from a CUDA device: a side stream copies into the slot, whose memory is registered with the driver. And back:
a restore fills the device's tensors chunk by chunk. Samples and digests of tensors are taken where they lie.

No CI has a GPU: after a change here, `make gpu-check` on a machine with one.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.transfer import tensor_memory

_SMALL = 256 * 1024  # bytes below which a transfer of its own costs more than gathering
_STAGE = 32 * 1024 * 1024  # bytes of pinned memory for gathered small tensors, at most
_registered: dict[int, int] = {}

DevicePiece = tuple[torch.Tensor, torch.Tensor, bool]
"""The view into the slot, the tensor on the device, whether it is early (see TensorPiece)."""

DigestRequest = tuple[torch.Tensor, bool, Callable[[bytes], object]]
"""A tensor on a device, whether it is early (see TensorPiece), and who is told its digest."""

Changed = Callable[[Sequence[torch.Tensor]], object]
"""Who is told of tensors that changed while they were copied."""


def synchronize(tensors: Iterable[torch.Tensor]) -> None:
    """Wait until the CUDA devices of these tensors have done all work enqueued so far, in every
    stream."""
    for which in {tensor.device for tensor in tensors if tensor_memory.is_on_cuda(tensor)}:
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
            sums = [(digest_tensors([tensor for tensor, _, _ in early]), early)]
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
                sums.append((digest_tensors([tensor for tensor, _, _ in late]), late))
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


# Some chunks of tensors on a device, read where they lie, as `SampledWords` reads those of the host's memory.

_CHUNK = 64  # bytes
_EVERY = 4 * 1024 * 1024  # bytes of a tensor for one chunk
_MOST = 64  # chunks of a tensor
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SampledChunks:
    """Views of some chunks of each tensor, the first and the last among them."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._views: dict[torch.dtype, list[torch.Tensor]] = {}
        owners: dict[torch.dtype, list[int]] = {}
        for number, tensor in enumerate(tensors):
            for view in _sampled_chunk_views(tensor):
                self._views.setdefault(view.dtype, []).append(view)
                owners.setdefault(view.dtype, []).extend([number] * view.numel())
        self._owners = [number for numbers in owners.values() for number in numbers]

    def is_for_tensors(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether these are its tensors."""
        return len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors))

    def read(self) -> list[torch.Tensor]:
        """Return the sampled chunks as they are when the device's current stream comes to it."""
        return [torch.cat(views) for views in self._views.values()]

    def differing(self, before: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return for each item of the chunks whether it differs from the `read` that gave `before`, on the
        device; None where there are no chunks."""
        if not before:
            return None
        return torch.cat([then != now for then, now in zip(before, self.read(), strict=True)])

    def changed(self, differing: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors to which the differing items belong; `differing` is in host memory."""
        numbers = {self._owners[at] for at in differing.nonzero().view(-1).tolist()}
        return [self._tensors[number] for number in sorted(numbers)]


def _sampled_chunk_views(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    plain = tensor.detach()
    if not plain.numel() or plain.is_conj() or plain.is_neg():
        return  # what these bits stand for is no memory that could be compared as it is
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    items = plain.view(_INTEGERS[plain.element_size()])
    room = _CHUNK // items.element_size()
    if not items.is_contiguous():
        while items.dim() > 1:
            items = items.select(0, items.shape[0] // 2)
        yield items[:room]
        return
    items = items.view(-1)
    count = 1 + min(_MOST - 1, items.nbytes // _EVERY)
    last = max(0, items.numel() - room)
    for number in range(count):
        yield items.narrow(0, last * number // max(1, count - 1), min(room, items.numel()))


# A digest of tensors where they lie: 128 bits of sums over mixed words, by operations that every device of torch has.
#
# Equal bytes give equal digests on every device. It finds faults and differences; it does not stop a forger.

_PART = 32 * 1024 * 1024  # bytes at once: the memory that it takes is a few times as much
_WORD = 8
# Odd, with about as many ones as zeros; one row a lane.
_MIX = (
    (-7046029254386353131, -4417276706812531889, 2870177450012600261),
    (-4265267296055464877, -2960836687055125679, -7723592293110705685),
)

_Part = tuple[int, torch.Tensor, int]
"""Number of the tensor, some of its bytes, the first word's place in it."""


def digest_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the digests of tensors on one device as a tensor of shape (count, 2) and type i64 on that
    device; does not wait for the device."""
    device = tensors[0].device
    out = torch.zeros(2, len(tensors), dtype=torch.int64, device=device)
    zeros = torch.zeros(_WORD, dtype=torch.uint8, device=device)
    for group in _groups(tensors):
        padded = torch.cat([piece for _, data, _ in group for piece in (data, zeros[: -data.numel() % _WORD])])
        counts = [-(-data.numel() // _WORD) for _, data, _ in group]
        starts = itertools.accumulate(counts, initial=0)
        values = padded.view(torch.int64)
        position = torch.arange(values.numel(), dtype=torch.int64, device=device)
        if len(group) == 1:
            _, _, first = group[0]
            for lane, mix in enumerate(_MIX):
                out[lane, group[0][0]] += _mixed(values, position + first, mix).sum()
            continue
        which = torch.repeat_interleave(
            torch.tensor([number for number, _, _ in group], device="cpu"), torch.tensor(counts, device="cpu")
        )
        shift = torch.repeat_interleave(
            torch.tensor([first - start for (_, _, first), start in zip(group, starts)], device="cpu"),
            torch.tensor(counts, device="cpu"),
        )
        which, shift = which.to(device), shift.to(device)
        for lane, mix in enumerate(_MIX):
            out[lane].index_add_(0, which, _mixed(values, position + shift, mix))
    return out.t()


def _mixed(values: torch.Tensor, position: torch.Tensor, mix: tuple[int, int, int]) -> torch.Tensor:
    mixed = (values ^ (position * mix[0])) * mix[1]
    mixed ^= mixed >> 29
    return mixed.mul_(mix[2])


def _groups(tensors: Sequence[torch.Tensor]) -> Iterator[list[_Part]]:
    """Yield the bytes of all tensors in groups of parts of at most _PART bytes."""
    group: list[_Part] = []
    filled = 0
    for number, tensor in enumerate(tensors):
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        for at in range(0, flat.numel(), _PART):
            data = flat[at : at + _PART]
            if filled + data.numel() > _PART:
                yield group
                group, filled = [], 0
            group.append((number, data, at // _WORD))
            filled += data.numel()
    if group:
        yield group
