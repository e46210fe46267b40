"""Buffers that DDP sends from rank 0 to all before each forward pass: until then ranks may hold others."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def names_of_broadcast_buffers(model: torch.nn.Module, unwrapped: torch.nn.Module) -> frozenset[str]:
    """Return the names in `unwrapped`, the model inside `model`'s wrappers, of the buffers that DDP
    sends from rank 0 before each forward pass."""
    names: set[str] = set()
    while model is not unwrapped:
        if isinstance(model, DDP):
            names |= _broadcast_names_of_ddp(model, "")
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if not isinstance(inner, torch.nn.Module):
            break
        model = inner
    for name, module in unwrapped.named_modules():
        if isinstance(module, DDP):
            names |= _broadcast_names_of_ddp(module, f"{name}.module.")
    return frozenset(names)


def _broadcast_names_of_ddp(model: DDP, prefix: str) -> set[str]:
    if not (model.broadcast_buffers and model.require_forward_param_sync):
        return set()
    ignored = model.parameters_to_ignore
    return {prefix + name for name, _ in model.module.named_buffers(remove_duplicate=False) if name not in ignored}
