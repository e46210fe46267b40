"""FSDP1, whose flat parameters only torch can take apart: its state dicts come from torch.distributed.checkpoint.

Making them is a collective (each tensor is gathered and cut again) and gives copies: a save of such a model is no
match for one under FSDP2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hyperpod_kit.checkpoint.codec import codec


def is_used(model: torch.nn.Module) -> bool:
    """Return whether a module inside is wrapped by FullyShardedDataParallel."""
    fsdp_module = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    kind = getattr(fsdp_module, "FullyShardedDataParallel", None)
    return kind is not None and any(isinstance(module, kind) for module in model.modules())


class Dicts:
    """Sharded state dicts of model and optimizer, keyed by parameter names. A collective."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        from torch.distributed.checkpoint import state_dict

        self._module = model
        self._optimizer = optimizer
        self.model: dict[str, Any] = state_dict.get_model_state_dict(model)
        self.optimizer: dict[str, Any] = {}
        if optimizer is not None:
            self.optimizer = state_dict.get_optimizer_state_dict(model, optimizer)

    def load_filled_dicts(self, tree: Mapping[str, Any], get_tensor: Callable[[str], torch.Tensor]) -> None:
        """Load the sharded state dicts, whose tensors are filled by now, into model and optimizer through
        torch. A collective. Raises RuntimeError."""
        from torch.distributed.checkpoint import state_dict

        state_dict.set_model_state_dict(self._module, codec.decode(tree["model"], get_tensor))
        if self._optimizer is not None:
            state_dict.set_optimizer_state_dict(
                self._module, self._optimizer, codec.decode(tree["optimizer"], get_tensor)
            )
