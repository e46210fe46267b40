"""The few collectives that starting and restoring need. Saving needs none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import values
from hyperpod_kit.checkpoint.holders import Holders
from hyperpod_kit.checkpoint.reason import Reason, first_reason
from hyperpod_kit.errors import CheckpointError

_LENGTH = 8
_SMALL = 4096
"""A broadcast of at most this many bytes takes one collective, a larger one more. Almost all are small, and with short
reads the time of a restore is that of its collectives."""
_PIECE = 64 * 1024 * 1024
_MOST = 4 * values.LARGEST
"""Bytes of one value: what another rank says of its length is no reason to take all memory."""


def first_problem(problems: Sequence[str | None]) -> str | None:
    """The first rank's that has one, with its number where there are several; None when none has."""
    for rank, found in enumerate(problems):
        if found is not None:
            return f"rank {rank}: {found}" if len(problems) > 1 else found
    return None


def _headed(text: bytes, size: int) -> bytes:
    return size.to_bytes(_LENGTH, "little") + text


def _length(found: bytes) -> int:
    return int.from_bytes(found[:_LENGTH], "little")


def _bounded(size: int) -> int:
    """Raises CheckpointError, on all ranks, for what no rank of ours says."""
    if size > _MOST:
        raise CheckpointError(f"a rank tells {size} bytes, expected at most {_MOST}")
    return size


class Ranks:
    """This process among the ranks of the run; a world of one when torch.distributed is not initialised."""

    def __init__(self, group: dist.ProcessGroup | None = None, *, alone: bool = False) -> None:
        self.alone = alone or not (dist.is_available() and dist.is_initialized())
        self._group: dist.ProcessGroup | None = None
        if not self.alone:
            wanted = group if group is not None else dist.group.WORLD
            if "gloo" not in str(dist.get_backend(wanted)):
                # Control messages and shards live in host memory.
                wanted = dist.new_group(ranks=dist.get_process_group_ranks(wanted), backend="gloo")
            self._group = wanted
        self.rank: int = 0 if self.alone else dist.get_rank(self._group)
        self.world: int = 1 if self.alone else dist.get_world_size(self._group)
        self.holders = Holders(self.rank)

    def beside(self) -> dist.ProcessGroup:
        """The same ranks in a group of their own, for what runs beside everything else. Several ranks; all call it."""
        group: dist.ProcessGroup = dist.new_group(ranks=dist.get_process_group_ranks(self._group), backend="gloo")
        return group

    def meet(self, value: Any) -> list[Any]:
        """As `gather`, in the form that ranks of every version understand: the first thing that they say to each other.

        Raises CheckpointError for a rank of another version."""
        if self.alone:
            return [value]
        text, untold = self._packed(value)
        first = self._all(_headed(text[:_SMALL], len(text)), _LENGTH + _SMALL)
        sizes = [_length(found) for found in first]
        more = max(sizes) - _SMALL
        rest = self._all(text[_SMALL:], _bounded(more)) if more > 0 else [b""] * self.world
        return self._understood(
            [(begin[_LENGTH:] + end)[:size] for begin, end, size in zip(first, rest, sizes, strict=True)], untold
        )

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, by rank. Raises CheckpointError, on all ranks, when one told what is no value of ours.

        Where all say the same, which is most often so, nobody is sent it: that costs the same for any number of ranks.
        """
        if self.alone:
            return [value]
        text, untold = self._packed(value)
        longest, same = self._measured(text)
        if same and untold is None:
            return self._understood([text], None) * self.world
        found = self._all(_headed(text, len(text)), _LENGTH + _bounded(longest))
        return self._understood([one[_LENGTH : _LENGTH + _length(one)] for one in found], untold)

    def _packed(self, value: Any) -> tuple[bytes, TypeError | None]:
        try:
            return values.pack(value), None
        except TypeError as err:  # the others wait for us
            return b"", err

    def _understood(self, texts: Sequence[bytes], untold: TypeError | None) -> list[Any]:
        if untold is not None:
            raise CheckpointError(str(untold))
        return [values.unpack(text, f"rank {rank}") for rank, text in enumerate(texts)]

    def _measured(self, text: bytes) -> tuple[int, bool]:
        """(the longest of everybody's texts, whether they are all the same). The greatest and the smallest of all
        digests come from one reduction: ~x is the greater the smaller x is."""
        digest = hashlib.blake2b(text, digest_size=16).digest()
        halves = [int.from_bytes(half, "little", signed=True) for half in (digest[:8], digest[8:])]
        seen = torch.tensor([len(text), *halves, *(~half for half in halves)], device="cpu")
        dist.all_reduce(seen, op=dist.ReduceOp.MAX, group=self._group)
        longest, one, other, least, less = seen.tolist()
        return longest, (one, other) == (~least, ~less)

    def _all(self, data: bytes, size: int) -> list[bytes]:
        """Everybody's bytes, by rank, filled up to `size`."""
        mine = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        out = torch.empty(self.world, size, dtype=torch.uint8, device="cpu")
        dist.all_gather(list(out), mine, group=self._group)
        return [bytes(row.numpy()) for row in out]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value of rank `source`. Raises CheckpointError, on all ranks, when it is no value of ours."""
        if self.alone:
            return value
        text, untold = self._packed(value) if self.rank == source else (b"", None)
        first = self._sent(_headed(text[:_SMALL], len(text)), _LENGTH + _SMALL, source)
        size = _length(first)
        rest = self._sent(text[_SMALL:], _bounded(size - _SMALL), source) if size > _SMALL else b""
        if untold is not None:
            raise CheckpointError(str(untold))
        return values.unpack((first[_LENGTH:] + rest)[:size], f"rank {source}")

    def _sent(self, data: bytes, size: int, source: int) -> bytes:
        """`size` bytes of rank `source`, which has `data`."""
        made = bytearray(data.ljust(size, b"\0")) if self.rank == source else bytearray(size)
        self.send_bytes(torch.frombuffer(made, dtype=torch.uint8), source)
        return bytes(made)

    def hand_out(self, parts: Sequence[Any] | None) -> Any:
        """Of rank 0's `parts`, one for each rank, this rank's. Raises CheckpointError as `broadcast`."""
        if self.alone:
            return parts[0] if parts is not None else None
        packed = [self._packed(part) for part in parts] if self.rank == 0 and parts is not None else []
        longest = self.broadcast(max((len(text) for text, _ in packed), default=0))
        untold = next((err for _, err in packed if err is not None), None)
        size = _LENGTH + _bounded(longest)
        mine = torch.empty(size, dtype=torch.uint8, device="cpu")
        rows = [
            torch.frombuffer(bytearray(_headed(text, len(text)).ljust(size, b"\0")), dtype=torch.uint8)
            for text, _ in packed
        ]
        dist.scatter(mine, rows if self.rank == 0 else None, src=self.global_rank(0), group=self._group)
        found = bytes(mine.numpy())
        if untold is not None:
            raise CheckpointError(str(untold))
        return values.unpack(found[_LENGTH : _LENGTH + _length(found)], "rank 0")

    def agree(self, problem: Reason | None) -> Reason | None:
        """None when no rank has a problem, else the first one, the same on all ranks."""
        return first_reason(self.gather(problem))

    def send_bytes(self, data: torch.Tensor, source: int) -> None:
        """Copy a U8 tensor from rank `source` into everybody's tensor of the same size."""
        if self.alone:
            return
        first = dist.get_global_rank(self._group, source) if self._group is not None else source
        for at in range(0, data.numel(), _PIECE):
            dist.broadcast(data[at : at + _PIECE], src=first, group=self._group)

    def pass_bytes(self, data: torch.Tensor, source: int, holders: tuple[int, ...]) -> None:
        """Copy a U8 tensor from global rank `source` to the other `holders` (global ranks), who call this too."""
        me = dist.get_rank()
        for at in range(0, data.numel(), _PIECE):
            part = data[at : at + _PIECE]
            if me != source:
                dist.recv(part, src=source, group=self._group)
                continue
            for holder in holders:
                if holder != source:
                    dist.send(part, dst=holder, group=self._group)

    def send(self, data: torch.Tensor, rank: int, tag: int) -> Any:
        """Begin to send a tensor to one rank, which calls `receive`; what is returned is waited for."""
        return dist.isend(data, dst=self.global_rank(rank), group=self._group, tag=tag)

    def receive(self, data: torch.Tensor, rank: int, tag: int) -> Any:
        """Begin to fill a tensor of the size that the rank sends; what is returned is waited for."""
        return dist.irecv(data, src=self.global_rank(rank), group=self._group, tag=tag)

    def global_rank(self, rank: int) -> int:
        """The rank in the default group of a rank of this one."""
        return rank if self.alone or self._group is None else dist.get_global_rank(self._group, rank)
