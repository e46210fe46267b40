"""The few collectives that starting and restoring need. Saving needs none."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_PIECE = 64 * 1024 * 1024


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

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, by rank."""
        if self.alone:
            return [value]
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value, group=self._group)
        return out

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value of rank `source`."""
        return self.gather(value if self.rank == source else None)[source]

    def agree(self, problem: str | None) -> str | None:
        """None when no rank has a problem, else the first one, the same on all ranks."""
        for rank, found in enumerate(self.gather(problem)):
            if found is not None:
                return f"rank {rank}: {found}" if self.world > 1 else str(found)
        return None

    def send_bytes(self, data: torch.Tensor, source: int) -> None:
        """Copy a U8 tensor from rank `source` into everybody's tensor of the same size."""
        if self.alone:
            return
        first = dist.get_global_rank(self._group, source) if self._group is not None else source
        for at in range(0, data.numel(), _PIECE):
            dist.broadcast(data[at:at + _PIECE], src=first, group=self._group)

    def pass_bytes(self, data: torch.Tensor, source: int, holders: tuple[int, ...]) -> None:
        """Copy a U8 tensor from global rank `source` to the other `holders` (global ranks), who call this too."""
        me = dist.get_rank()
        for at in range(0, data.numel(), _PIECE):
            part = data[at:at + _PIECE]
            if me != source:
                dist.recv(part, src=source, group=self._group)
                continue
            for holder in holders:
                if holder != source:
                    dist.send(part, dst=holder, group=self._group)

    def global_rank(self, rank: int) -> int:
        """The rank in the default group of a rank of this one."""
        return rank if self.alone or self._group is None else dist.get_global_rank(self._group, rank)
