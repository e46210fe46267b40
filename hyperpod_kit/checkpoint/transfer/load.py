"""Where the bytes of a shard go: straight into live tensors, as soon as their chunk was checked."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from hyperpod_kit.checkpoint.codec.dtypes import TYPES
from hyperpod_kit.checkpoint.repository.format import digest, shard
from hyperpod_kit.checkpoint.repository.format.shard import Parsed, Placed, TensorSpec
from hyperpod_kit.checkpoint.repository.read import stream
from hyperpod_kit.checkpoint.repository.read.chunk_reader import Pump, all_chunks
from hyperpod_kit.checkpoint.state.tensors import TensorPiece, is_per_rank
from hyperpod_kit.checkpoint.transfer import device, memory_copy, tensor_memory
from hyperpod_kit.checkpoint.transfer.restore_progress import ignore_bytes
from hyperpod_kit.errors import CheckpointError

_AHEAD = 256 * 1024 * 1024
"""Bytes that are read and compared while a state of thousands of tensors is still walked: with less the disk would
rest. A rank that has to read has no slots yet, so there is room."""


def address_of(view: memoryview) -> int:
    """The address of writable memory."""
    if len(view):
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    return 0


def view_of(data: torch.Tensor) -> memoryview:
    """The memory of a U8 tensor in host memory."""
    return memoryview(data.numpy())  # type: ignore[arg-type]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a contiguous tensor's memory as a flat U8 tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def can_fill_directly(tensor: torch.Tensor) -> bool:
    """Whether bytes of a file can go straight into the tensor's memory, on the host or on a device: see `Landing`."""
    is_supported = tensor.device.type == "cpu" or tensor_memory.is_on_cuda(tensor)
    return is_supported and tensor_memory.is_contiguous_without_flags(tensor)


def warm_up_digest_and_copy_code(algorithm: str) -> None:
    """Digest and copy a little memory, so that this code is loaded before a restore reads.

    Code that runs for the first time while a restore reads comes from the same disk, behind
    hundreds of megabytes: with an empty page cache the first copy was seen to take 40 ms.
    """
    size = 128 * 1024  # both ways to copy, and the digest's loop for long input
    source, target = (
        torch.zeros(size, dtype=torch.uint8, device="cpu"),
        torch.empty(size, dtype=torch.uint8, device="cpu"),
    )
    digest.algorithm(algorithm).leaf(view_of(source))
    memory_copy.copy_memory(target.data_ptr(), source.data_ptr(), size)
    memory_copy.copy_memory(target.data_ptr(), source.data_ptr(), 1)


class TargetFault(CheckpointError):
    """What was read is good, and the memory that it belongs into could not be filled. Says nothing about the
    checkpoint."""

    def __init__(self, name: str, err: Exception) -> None:
        super().__init__(f"{name} could not be filled: {type(err).__name__}: {err}")


class Landing:
    """Byte ranges of one file and the memory that they go to. Holds the tensors, so the memory stays.

    A device's memory is filled from the chunks themselves, so a restore holds no second copy of a state on the host.
    """

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, int | torch.Tensor]] = []  # an address on the host, or bytes on a device
        self._begins: list[int] = []
        self._reach: list[int] = []  # the furthest end of all ranges up to this one
        self._tensors: list[torch.Tensor] = []
        self.touched = False
        """Whether memory was written to."""

    def add(self, begin: int, end: int, tensor: torch.Tensor, offset: int = 0) -> None:
        """Bytes [begin, end) of the file go to `tensor` (see `can_fill_directly`), from its byte `offset` on."""
        if end > begin:
            on_device = tensor_memory.is_on_cuda(tensor)
            target = bytes_of(tensor)[offset:][: end - begin] if on_device else tensor.data_ptr() + offset
            self._ranges.append((begin, end, target))
            self._tensors.append(tensor)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Return the requested byte ranges in the order of the file; after `sort_ranges_and_synchronize_devices`."""
        return [(begin, end) for begin, end, _ in self._ranges]

    def add_all_from(self, other: Landing) -> None:
        """Add the ranges and tensors of another Landing."""
        self._ranges += other._ranges
        self._tensors += other._tensors

    def chunk_numbers(self, chunk_size: int) -> set[int]:
        """Return the numbers of the chunks of `chunk_size` bytes in which requested bytes lie."""
        return {index for begin, end, _ in self._ranges for index in range(begin // chunk_size, -(-end // chunk_size))}

    def requested_ranges(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the requested ranges within the bytes [begin, end), in order, each byte once; after
        `sort_ranges_and_synchronize_devices`."""
        merged: list[tuple[int, int]] = []
        low, high = bisect.bisect_right(self._reach, begin), bisect.bisect_left(self._begins, end)
        for first, last, _ in self._ranges[low:high]:
            first, last = max(first, begin), min(last, end)
            if last <= first:
                continue
            if merged and first <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        return merged

    def sort_ranges_and_synchronize_devices(self) -> None:
        """Sort the ranges and wait for pending work of devices on the tensors; nothing is added after it,
        and it is needed before the first `copy_requested_bytes`: threads copy in streams of their own."""
        self._ranges.sort(key=lambda entry: entry[:2])
        device.synchronize(self._tensors)
        self._begins = [begin for begin, _, _ in self._ranges]
        self._reach = list(itertools.accumulate((end for _, end, _ in self._ranges), max))

    def copy_requested_bytes(self, begin: int, view: memoryview) -> None:
        """Copy what is requested of the bytes from offset `begin` on into its targets, and return when it
        is there.

        Safe for threads; releases the GIL in each copy. Raises TargetFault for a device that fails.
        """
        source, end = address_of(view), begin + len(view)
        # Ranges may overlap: two targets can want the same saved bytes.
        low, high = bisect.bisect_right(self._reach, begin), bisect.bisect_left(self._begins, end)
        for first, last, target in self._ranges[low:high]:
            if last > begin:
                self.touched = True
                at = max(first, begin)
                size = min(last, end) - at
                if isinstance(target, int):
                    memory_copy.copy_memory(target + at - first, source + at - begin, size)
                else:
                    _copy_to_device_or_target_fault(target[at - first :][:size], view[at - begin :][:size])


def _copy_to_device_or_target_fault(target: torch.Tensor, view: memoryview) -> None:
    try:
        device.copy_from_host_and_wait(target, view)
    except RuntimeError as err:
        raise TargetFault(f"a tensor on {target.device}", err) from None


class ShardLoad:
    """Maps the shard that this rank saved to its live tensors.

    `loaded` are new tensors, of those without a live one; `here` the names of the pieces that this shard fills.
    Raises CheckpointError when the shard's header does not fit the pieces.
    """

    def __init__(self, parsed: Parsed, pieces: Mapping[str, TensorPiece]) -> None:
        self.landing = Landing()
        self.loaded: dict[str, torch.Tensor] = {}
        self.here: set[str] = set()
        self._staged: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        for placed in parsed.tensors:
            self._add_target(placed, pieces.get(placed.spec.name))
        self.landing.sort_ranges_and_synchronize_devices()

    def _add_target(self, placed: Placed, piece: TensorPiece | None) -> None:
        spec = placed.spec
        if piece is None:
            target = self.loaded[spec.name] = allocate_host_tensor(spec)
        else:
            if spec != piece.spec:
                raise _mismatch_error(spec, piece.spec)
            self.here.add(spec.name)
            target = piece.tensor
            if not can_fill_directly(target):
                target = allocate_host_tensor(spec)
                self._staged.append((spec.name, piece.tensor, target))
        self.landing.add(placed.begin, placed.end, target)

    def copy_staged_tensors(self) -> None:
        """Copy into the tensors that could not be written to directly, once all bytes are read. Raises
        TargetFault."""
        for name, live, staged in self._staged:
            copy_into(live, staged, name)


def allocate_host_tensor(spec: TensorSpec) -> torch.Tensor:
    """Return a new tensor in host memory for all of a piece. Raises TargetFault when there is no
    memory for it."""
    try:
        return torch.empty(spec.shape, dtype=TYPES[spec.dtype], device="cpu")
    except (RuntimeError, MemoryError) as err:
        raise TargetFault(spec.name, err) from None


def copy_into(live: torch.Tensor, source: torch.Tensor, name: str) -> None:
    """Copy `source` into a live tensor. Raises TargetFault."""
    try:
        with torch.no_grad():
            live.copy_(source)
    except Exception as err:
        raise TargetFault(name, err) from None


def _mismatch_error(saved: TensorSpec, here: TensorSpec) -> CheckpointError:
    hint = None
    if is_per_rank(here.name):
        hint = f"remove {here.name} before the restore: then the saved value replaces it"
    return CheckpointError(
        f"{saved.name} is {describe_type_and_shape(saved)} in the checkpoint, {describe_type_and_shape(here)} here",
        hint=hint,
    )


def describe_type_and_shape(spec: TensorSpec) -> str:
    box = ""
    if spec.full:
        box = f" at {list(spec.offsets)} of {list(spec.full)}"
    return f"{spec.dtype} {list(spec.shape)}{box}"


class ProvedShard(NamedTuple):
    """A shard of which the leaves are proved. `confirm()` raises CheckpointError when what was read is gone by now."""

    shard: stream.Shard
    confirm: Callable[[], None] = lambda: None


class Reading:
    """This rank's shard, read and proved from the beginning on while its state still says where the bytes go.

    `opened` is entered here and left by `close`; `threads` compare and copy. What goes wrong is raised by `fill`, not
    here.
    """

    def __init__(self, opened: contextlib.AbstractContextManager[ProvedShard], threads: int) -> None:
        self._resources = contextlib.ExitStack()
        self._error: Exception | None = None
        self._parsed: Parsed | None = None
        self._shard_load: ShardLoad | None = None
        self._opened: ProvedShard | None = None
        try:
            self._opened = self._resources.enter_context(opened)
            self._pump = self._resources.enter_context(
                Pump(all_chunks(self._opened.shard), workers=threads, ahead=_AHEAD)
            )
        except Exception as err:
            self._error = err

    @property
    def size(self) -> int:
        """Bytes of the shard; 0 of one that could not be opened."""
        if self._opened is not None:
            return self._opened.shard.size
        return 0

    @property
    def has_written_targets(self) -> bool:
        """Return whether a live tensor was written to."""
        return self._shard_load is not None and self._shard_load.landing.touched

    def close(self) -> None:
        """Stop reading and close the shard."""
        self._resources.close()

    def require_matching_header_if_readable(self, pieces: Mapping[str, TensorPiece]) -> None:
        """Read the shard's header and raise CheckpointError where a type or whole shape differs from
        `pieces`, before a live tensor is written to; a header that cannot be read is left for `fill` to
        raise."""
        try:
            parsed = self._parsed = self._wait_for_and_parse_header()
        except Exception as err:
            self._error = self._error or err
            return
        for placed in parsed.tensors:
            piece = pieces.get(placed.spec.name)
            if piece is not None and (placed.spec.dtype, placed.spec.full_shape) != (
                piece.spec.dtype,
                piece.spec.full_shape,
            ):
                raise _mismatch_error(placed.spec, piece.spec)

    def fill(self, pieces: Mapping[str, TensorPiece], on_read: Callable[[int], None] = ignore_bytes) -> ShardLoad:
        """Fill live tensors; `on_read` is called with the size of each chunk, in any thread.

        Raises DigestMismatch, DigestUnavailable, TargetFault, CheckpointError, OSError.
        """
        parsed = self._parsed or self._wait_for_and_parse_header()
        shard_load = self._shard_load = ShardLoad(parsed, pieces)

        def deliver(_: stream.Shard, begin: int, view: memoryview) -> None:
            shard_load.landing.copy_requested_bytes(begin, view)
            on_read(len(view))

        self._pump.deliver_all_and_wait(deliver)
        assert self._opened is not None, "what was parsed was opened"
        self._opened.confirm()
        shard_load.copy_staged_tensors()
        return shard_load

    def stop_and_take_proved_chunks(self) -> dict[int, memoryview]:
        """Stop reading and return the chunks that were read and proved so far, by their numbers, when
        `fill` will not be called; an error is left to whoever reads the rest."""
        if self._error is not None:
            return {}
        return self._pump.stop_and_return_verified()

    def _wait_for_and_parse_header(self) -> Parsed:
        if self._error is not None:
            raise self._error
        assert self._opened is not None
        source = self._opened.shard
        first = self._pump.wait_for_first_chunk()
        length = shard.head_size(first)
        if length > source.size:
            raise CheckpointError(f"{source.name}: a header of {length} bytes in a file of {source.size}")
        head = first
        if length > len(first):
            head = memoryview(bytearray(source.read_verified(0, length)))
        return shard.parse(head, source.size)
