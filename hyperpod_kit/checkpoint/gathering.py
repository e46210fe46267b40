"""Whole tensors of sharded ones, for `State(full=True)`: one after the other, so that each device holds one at a time.

Collectives. What rank 0 gets lies in host memory: a device has room for its shards, not for a model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def gather_dtensor(tensor: Any, *, is_requested: bool) -> torch.Tensor | None:
    """The whole of a DTensor where it is `is_requested`."""
    with torch.no_grad():
        full_tensor = tensor.full_tensor()
    return full_tensor.detach().cpu() if is_requested else None


def gather_sharded_tensor(tensor: Any, *, is_requested: bool) -> torch.Tensor | None:
    """The same of a ShardedTensor (FSDP1), on the first rank of all. It may be over some of the ranks only, and others
    have the same of it (hybrid sharding by process groups): those with the first rank give it."""
    group = tensor._process_group
    if 0 not in dist.get_process_group_ranks(group):
        return None
    full_tensor = (
        torch.empty(tensor.shape, dtype=tensor.dtype, device=_device(tensor)) if dist.get_rank() == 0 else None
    )
    tensor.gather(dst=0, out=full_tensor, dtype=tensor.dtype)
    return full_tensor.cpu() if full_tensor is not None and is_requested else None


def _device(tensor: Any) -> torch.device:
    """Where the pieces are sent to: NCCL has no host memory."""
    shards = tensor.local_shards()
    return shards[0].tensor.device if shards else torch.device("cpu")
