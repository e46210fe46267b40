"""Megatron-core without a GPU: what it asks of CUDA and of Apex by name is answered by the CPU and by torch. For tests,
and to try things. To be imported before Megatron; with a GPU it does nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class FusedAdam(torch.optim.Optimizer):
    """Apex's, which counts its steps in the groups: Megatron restores no optimizer that counts elsewhere."""

    def __init__(self, params: Any, lr: float, betas: Any, eps: float, weight_decay: float, **_: Any) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                for name in ("exp_avg", "exp_avg_sq"):
                    self.state[weight].setdefault(name, torch.zeros_like(weight))
            torch.optim._functional.adamw(
                weights,
                [weight.grad for weight in weights],
                *([self.state[weight][name] for weight in weights] for name in ("exp_avg", "exp_avg_sq")),
                [],
                [torch.tensor(float(group["step"] - 1)) for _ in weights],
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )


class OnCpu(TorchFunctionMode):
    """`device="cuda"` means the CPU, and a tensor is of the type that Megatron's optimizer looks for."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not named:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return func(*args, **named)


def stand_in() -> None:
    """From here on, in this process."""
    if torch.cuda.is_available():
        return
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    torch.cuda.is_current_stream_capturing = lambda: False
    apex = ModuleType("apex.optimizers")
    vars(apex).update(FusedAdam=FusedAdam, FusedSGD=torch.optim.SGD)
    sys.modules["apex.optimizers"] = apex
    OnCpu().__enter__()
    from megatron.core.tensor_parallel import random

    random.get_cuda_rng_tracker().fork = lambda name="": contextlib.nullcontext()


stand_in()
