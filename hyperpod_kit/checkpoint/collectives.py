"""The few collectives that starting and restoring need. Saving needs none."""

from __future__ import annotations

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
"""A value of at most this many bytes takes one collective, a larger one two. Almost all are small, and with short
reads the time of a restore is that of its collectives."""
_PIECE = 64 * 1024 * 1024


def first_problem(problems: Sequence[str | None]) -> str | None:
    """The first rank's that has one, with its number where there are several; None when none has."""
    for rank, found in enumerate(problems):
        if found is not None:
            return f"rank {rank}: {found}" if len(problems) > 1 else found
    return None


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

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, by rank. Raises CheckpointError, on all ranks, when one told what is no value of ours."""
        if self.alone:
            return [value]
        text, untold = b"", None
        try:
            text = values.pack(value)
        except TypeError as err:  # the others wait for us
            untold = err
        first = self._all(len(text).to_bytes(_LENGTH, "little") + text[:_SMALL], _LENGTH + _SMALL)
        sizes = [int.from_bytes(found[:_LENGTH], "little") for found in first]
        more = max(sizes) - _SMALL
        rest = self._all(text[_SMALL:], more) if more > 0 else [b""] * self.world
        if untold is not None:
            raise CheckpointError(str(untold))
        return [
            values.unpack((begin[_LENGTH:] + end)[:size], f"rank {rank}")
            for rank, (begin, end, size) in enumerate(zip(first, rest, sizes, strict=True))
        ]

    def _all(self, data: bytes, size: int) -> list[bytes]:
        """Everybody's bytes, by rank, filled up to `size`."""
        mine = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        out = torch.empty(self.world, size, dtype=torch.uint8)
        dist.all_gather(list(out), mine, group=self._group)
        return [bytes(row.numpy()) for row in out]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value of rank `source`."""
        return self.gather(value if self.rank == source else None)[source]

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

    def global_rank(self, rank: int) -> int:
        """The rank in the default group of a rank of this one."""
        return rank if self.alone or self._group is None else dist.get_global_rank(self._group, rank)
