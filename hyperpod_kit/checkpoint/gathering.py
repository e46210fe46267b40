"""Whole tensors of sharded ones, for `State(full=True)`: one after the other, so that each device holds one at a time.

Collectives. What rank 0 gets lies in host memory: a device has room for its shards, not for a model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def gather_dtensor(tensor: Any, *, is_requested: bool) -> torch.Tensor | None:
    """Gather a DTensor (a collective) and return the whole tensor in host memory where it
    `is_requested`, else None."""
    with torch.no_grad():
        full_tensor: torch.Tensor = tensor.full_tensor()
    if is_requested:
        return full_tensor.detach().cpu()
    return None


def gather_sharded_tensor_to_rank_zero(tensor: Any, *, is_requested: bool) -> torch.Tensor | None:
    """The same of a ShardedTensor (FSDP1), on the first rank of all. It may be over some of the ranks only, and others
    have the same of it (hybrid sharding by process groups): those with the first rank give it."""
    group = tensor._process_group
    if 0 not in dist.get_process_group_ranks(group):
        return None
    full_tensor: torch.Tensor | None = None
    if dist.get_rank() == 0:
        full_tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device=_device_of_local_shards(tensor))
    tensor.gather(dst=0, out=full_tensor, dtype=tensor.dtype)
    if full_tensor is not None and is_requested:
        return full_tensor.cpu()
    return None


def _device_of_local_shards(tensor: Any) -> torch.device:
    """Return the device to which the pieces are sent: NCCL has no host memory."""
    shards = tensor.local_shards()
    device = torch.device("cpu")
    if shards:
        device = shards[0].tensor.device
    return device
