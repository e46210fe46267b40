"""Buffers that DDP sends from rank 0 to all before each forward pass: until then ranks may hold others."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def broadcast_buffers(model: torch.nn.Module, bare: torch.nn.Module) -> frozenset[str]:
    """Their names in `bare`, which is what is inside `model`'s wrappers."""
    names: set[str] = set()
    while model is not bare:
        if isinstance(model, DDP):
            names |= _buffers_of(model, "")
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if not isinstance(inner, torch.nn.Module):
            break
        model = inner
    for name, module in bare.named_modules():
        if isinstance(module, DDP):
            names |= _buffers_of(module, f"{name}.module.")
    return frozenset(names)


def _buffers_of(model: DDP, prefix: str) -> set[str]:
    if not (model.broadcast_buffers and model.require_forward_param_sync):
        return set()
    ignored = model.parameters_to_ignore
    return {prefix + name for name, _ in model.module.named_buffers(remove_duplicate=False) if name not in ignored}
