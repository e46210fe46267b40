"""The ranks of a bench run: barrier, the slowest, the sum. With one rank they are no-ops."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist


class Peers:
    """This process among `world`; they meet through a file under `directory`."""

    def __init__(self, rank: int, world: int, meeting: Path) -> None:
        self.rank, self.world = rank, world
        if world > 1:
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)

    def _all_reduce(self, value: float, how: dist.ReduceOp.RedOpType) -> float:
        if self.world == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(shared, op=how)
        return float(shared)

    def barrier(self) -> None:
        self._all_reduce(0.0, dist.ReduceOp.MAX)

    def max_over_ranks(self, value: float) -> float:
        return self._all_reduce(value, dist.ReduceOp.MAX)

    def sum_over_ranks(self, value: float) -> float:
        return self._all_reduce(value, dist.ReduceOp.SUM)

    def all_ranks_true(self, value: bool) -> bool:
        return self._all_reduce(float(value), dist.ReduceOp.MIN) == 1.0

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()
