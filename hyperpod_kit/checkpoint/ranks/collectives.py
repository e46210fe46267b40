"""The few collectives that starting and restoring need. Saving needs none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.ranks.placement import NamePlacement
from hyperpod_kit.checkpoint.ranks.reason import Reason, first_reason_with_rank
from hyperpod_kit.errors import CheckpointError

_LENGTH = 8
_SMALL = 4096
"""A broadcast of at most this many bytes takes one collective, a larger one more. Almost all are small, and with short
reads the time of a restore is that of its collectives."""
_PIECE = 64 * 1024 * 1024
_MAX_BYTES = 4 * wire_values.LARGEST
"""Bytes of one value: what another rank says of its length is no reason to take all memory."""


def first_problem_with_rank(problems: Sequence[str | None]) -> str | None:
    """Return the problem of the first rank that has one, with the rank's number where there are
    several ranks; None when none has."""
    for rank, problem in enumerate(problems):
        if problem is not None:
            if len(problems) > 1:
                return f"rank {rank}: {problem}"
            return problem
    return None


def _with_length(text: bytes, size: int) -> bytes:
    return size.to_bytes(_LENGTH, "little") + text


def _read_length(data: bytes) -> int:
    return int.from_bytes(data[:_LENGTH], "little")


def _checked_size(size: int) -> int:
    """Return `size`; raise CheckpointError, on all ranks, when it is larger than any value may be."""
    if size > _MAX_BYTES:
        raise CheckpointError(f"a rank announces {size} bytes, expected at most {_MAX_BYTES}")
    return size


class Ranks:
    """This process among the ranks of the run; a world of one when torch.distributed is not initialised."""

    def __init__(self, group: dist.ProcessGroup | None = None, *, alone: bool = False) -> None:
        self.alone = alone or not (dist.is_available() and dist.is_initialized())
        self._group: dist.ProcessGroup | None = None
        if not self.alone:
            control_group = dist.group.WORLD
            if group is not None:
                control_group = group
            if "gloo" not in str(dist.get_backend(control_group)):
                # Control messages and shards live in host memory.
                control_group = dist.new_group(ranks=dist.get_process_group_ranks(control_group), backend="gloo")
            self._group = control_group
        self.rank, self.world = 0, 1
        if not self.alone:
            self.rank, self.world = dist.get_rank(self._group), dist.get_world_size(self._group)
        self.placement = NamePlacement(self.rank)

    def new_group(self) -> dist.ProcessGroup:
        """Make another gloo group of the same ranks, for collectives beside everything else. A collective;
        for several ranks only."""
        group: dist.ProcessGroup = dist.new_group(ranks=dist.get_process_group_ranks(self._group), backend="gloo")
        return group

    def handshake(self, value: Any) -> list[Any]:
        """Gather every rank's value as `gather`, in the form that ranks of every version understand: the
        first collective between them.

        Raises CheckpointError for a rank of another version.
        """
        if self.alone:
            return [value]
        text, pack_error = self._pack(value)
        first = self._all_gather_bytes(_with_length(text[:_SMALL], len(text)), _LENGTH + _SMALL)
        sizes = [_read_length(data) for data in first]
        more = max(sizes) - _SMALL
        rest = [b""] * self.world
        if more > 0:
            rest = self._all_gather_bytes(text[_SMALL:], _checked_size(more))
        return self._unpack_all(
            [(begin[_LENGTH:] + end)[:size] for begin, end, size in zip(first, rest, sizes, strict=True)], pack_error
        )

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank, on all ranks.

        Where all are the same, which is most often so, none is sent: that costs the same for any number
        of ranks. Raises CheckpointError, on all ranks, when one rank's value is not allowed.
        """
        if self.alone:
            return [value]
        text, pack_error = self._pack(value)
        longest, same = self._longest_length_and_whether_texts_equal(text)
        if same and pack_error is None:
            return self._unpack_all([text], None) * self.world
        rows = self._all_gather_bytes(_with_length(text, len(text)), _LENGTH + _checked_size(longest))
        return self._unpack_all([row[_LENGTH : _LENGTH + _read_length(row)] for row in rows], pack_error)

    def _pack(self, value: Any) -> tuple[bytes, TypeError | None]:
        try:
            return wire_values.pack(value), None
        except TypeError as err:  # the others wait for us
            return b"", err

    def _unpack_all(self, texts: Sequence[bytes], pack_error: TypeError | None) -> list[Any]:
        if pack_error is not None:
            raise CheckpointError(str(pack_error))
        return [wire_values.unpack(text, f"rank {rank}") for rank, text in enumerate(texts)]

    def _longest_length_and_whether_texts_equal(self, text: bytes) -> tuple[int, bool]:
        """Return (length of the longest text of all ranks, whether all texts are the same), from one
        reduction.

        The greatest and the smallest of all digests come from the same reduction: ~x is the greater the
        smaller x is.
        """
        digest = hashlib.blake2b(text, digest_size=16).digest()
        halves = [int.from_bytes(half, "little", signed=True) for half in (digest[:8], digest[8:])]
        maxima = torch.tensor([len(text), *halves, *(~half for half in halves)], device="cpu")
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX, group=self._group)
        longest, first_half, second_half, inverted_first, inverted_second = maxima.tolist()
        return longest, (first_half, second_half) == (~inverted_first, ~inverted_second)

    def _all_gather_bytes(self, data: bytes, size: int) -> list[bytes]:
        """Everybody's bytes, by rank, filled up to `size`."""
        local_row = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        out = torch.empty(self.world, size, dtype=torch.uint8, device="cpu")
        dist.all_gather(list(out), local_row, group=self._group)
        return [bytes(row.numpy()) for row in out]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value of rank `source`. Raises CheckpointError, on all ranks, when it is no value of ours."""
        if self.alone:
            return value
        text, pack_error = b"", None
        if self.rank == source:
            text, pack_error = self._pack(value)
        first = self._broadcast_bytes(_with_length(text[:_SMALL], len(text)), _LENGTH + _SMALL, source)
        size = _read_length(first)
        rest = b""
        if size > _SMALL:
            rest = self._broadcast_bytes(text[_SMALL:], _checked_size(size - _SMALL), source)
        if pack_error is not None:
            raise CheckpointError(str(pack_error))
        return wire_values.unpack((first[_LENGTH:] + rest)[:size], f"rank {source}")

    def _broadcast_bytes(self, data: bytes, size: int, source: int) -> bytes:
        """`size` bytes of rank `source`, which has `data`."""
        buffer = bytearray(size)
        if self.rank == source:
            buffer = bytearray(data.ljust(size, b"\0"))
        self.broadcast_tensor(torch.frombuffer(buffer, dtype=torch.uint8), source)
        return bytes(buffer)

    def scatter(self, parts: Sequence[Any] | None) -> Any:
        """Of rank 0's `parts`, one for each rank, this rank's. Raises CheckpointError as `broadcast`."""
        if self.alone:
            if parts is not None:
                return parts[0]
            return None
        packed = []
        if self.rank == 0 and parts is not None:
            packed = [self._pack(part) for part in parts]
        longest = self.broadcast(max((len(text) for text, _ in packed), default=0))
        pack_error = next((err for _, err in packed if err is not None), None)
        size = _LENGTH + _checked_size(longest)
        local_row = torch.empty(size, dtype=torch.uint8, device="cpu")
        rows = [
            torch.frombuffer(bytearray(_with_length(text, len(text)).ljust(size, b"\0")), dtype=torch.uint8)
            for text, _ in packed
        ]
        source_rows = None
        if self.rank == 0:
            source_rows = rows
        dist.scatter(local_row, source_rows, src=self.global_rank(0), group=self._group)
        data = bytes(local_row.numpy())
        if pack_error is not None:
            raise CheckpointError(str(pack_error))
        return wire_values.unpack(data[_LENGTH : _LENGTH + _read_length(data)], "rank 0")

    def gather_first_reason(self, problem: Reason | None) -> Reason | None:
        """Gather every rank's problem and return the first one, the same on all ranks; None when no rank
        has one."""
        return first_reason_with_rank(self.gather(problem))

    def broadcast_tensor(self, data: torch.Tensor, source: int) -> None:
        """Broadcast a U8 tensor from rank `source` into every rank's tensor of the same size."""
        if self.alone:
            return
        first = source
        if self._group is not None:
            first = dist.get_global_rank(self._group, source)
        for at in range(0, data.numel(), _PIECE):
            dist.broadcast(data[at : at + _PIECE], src=first, group=self._group)

    def broadcast_to_holders(self, data: torch.Tensor, source: int, holders: tuple[int, ...]) -> None:
        """Copy a U8 tensor from global rank `source` to the other `holders` (global ranks), which all call
        this too."""
        me = dist.get_rank()
        for at in range(0, data.numel(), _PIECE):
            part = data[at : at + _PIECE]
            if me != source:
                dist.recv(part, src=source, group=self._group)
                continue
            for holder in holders:
                if holder != source:
                    dist.send(part, dst=holder, group=self._group)

    def start_send(self, data: torch.Tensor, rank: int, tag: int) -> Any:
        """Start to send a tensor to one rank, which calls `start_receive`; the caller waits on the
        returned request."""
        return dist.isend(data, dst=self.global_rank(rank), group=self._group, tag=tag)

    def start_receive(self, data: torch.Tensor, rank: int, tag: int) -> Any:
        """Start to receive into a tensor of the size that `rank` sends; the caller waits on the returned
        request."""
        return dist.irecv(data, src=self.global_rank(rank), group=self._group, tag=tag)

    def global_rank(self, rank: int) -> int:
        """Return the rank in the default group of a rank of this group."""
        if self.alone or self._group is None:
            return rank
        return dist.get_global_rank(self._group, rank)
