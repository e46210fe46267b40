"""Optimizers: pytorch_optimizer, timm, schedulefree, and those of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.zoo.training import WIDTH, Case, Layout, NoSuchProgram, Training

_CLOSURES = {"alig", "bsam", "lbfgs"}
_CURVATURE = {"adahessian", "sophiah"}
_MORE: dict[str, dict[str, Any]] = {
    "bsam": {"num_data": 8},
    "ranger21": {"num_iterations": 40},
    "adammini": {"model_dim": WIDTH, "num_heads": 4},
    "lbfgs": {"max_iter": 4, "history_size": 4},
}
_GROUPED = {"muon", "normuon", "adamuon", "adago", "distributedmuon", "muonclip", "spectralsphere"}
_ON_THREE = (
    *(
        "adafactor",
        "adamw",
        "adan",
        "ademamix",
        "kron",
        "lamb",
        "lion",
        "muon",
        "prodigy",
        "scion",
        "schedulefreeadamw",
    ),
    *("shampoo", "soap", "stableadamw", "adashift", "rose"),
)
"""Those that are tried in the largest layout too: one of each way to keep state."""


class Net(nn.Module):
    """`first` and `last` are what tensor parallelism divides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        self.out = nn.LayerNorm(WIDTH)

    def forward(self, batch: Any) -> Any:
        return self.out(self.last(self.norm(self.first(batch))))


def net(seed: int, layout: Layout) -> Any:
    torch.manual_seed(seed)
    return layout.divide(Net())


def optimized(optimizer: Callable[[Any], Any], **options: Any) -> Callable[[int, Layout], Training]:
    def make(seed: int, layout: Layout) -> Training:
        model = net(seed, layout)
        return Training(model, optimizer(model), **options)

    return make


def _of_all(optimizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda model: optimizer(model.parameters())


def _of_pytorch_optimizer(name: str) -> Callable[[int, Layout], Training]:
    def optimizer(model: Any) -> Any:
        import pytorch_optimizer

        kind = pytorch_optimizer.load_optimizer(name)
        options = {"lr": 1e-2, **_MORE.get(name, {})}
        if name == "adammini":
            return kind(model, **options)
        if name in _GROUPED:
            whole = list(model.parameters())
            groups = [
                {"params": [one for one in whole if one.ndim >= 2], "use_muon": True},
                {"params": [one for one in whole if one.ndim < 2], "use_muon": False},
            ]
            return kind(groups, **options)
        if name == "lomo" or name == "adalomo":
            raise NoSuchProgram("it steps inside backward, without a step of its own")
        return kind(model.parameters(), **options)

    return optimized(optimizer, closure=name in _CLOSURES, create_graph=name in _CURVATURE)


def _of_timm(name: str) -> Callable[[int, Layout], Training]:
    def optimizer(model: Any) -> Any:
        from tests.zoo.cases_modules import timm

        return timm().optim.create_optimizer_v2(model, opt=name, lr=1e-2, weight_decay=1e-3, momentum=0.9)

    return optimized(optimizer, create_graph=name == "adahessian")


def _schedulefree(name: str, closure: bool) -> Callable[[int, Layout], Training]:
    def optimizer(model: Any) -> Any:
        import schedulefree

        made = getattr(schedulefree, name)(model.parameters(), lr=1e-2)
        if hasattr(made, "train"):
            made.train()
        return made

    return optimized(optimizer, closure=closure)


def _wrapped_schedulefree(model: Any) -> Any:
    import schedulefree

    made = schedulefree.ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), lr=1e-2), momentum=0.9)
    made.train()
    return made


_TIMM = (
    *("adabelief", "adafactor", "adafactorbv", "adahessian", "adamp", "adamuon", "adan", "adopt", "cadamw", "kron"),
    *(
        "lamb",
        "laprop",
        "lars",
        "lion",
        "madgrad",
        "mars",
        "muon",
        "nadamw",
        "novograd",
        "radabelief",
        "rmsproptf",
        "sgdp",
    ),
)
_TORCH: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-2, amsgrad=True),
    "NAdam": lambda params: torch.optim.NAdam(params, lr=1e-2),
    "Adafactor": lambda params: torch.optim.Adafactor(params, lr=1e-2),
    "ASGD": lambda params: torch.optim.ASGD(params, lr=1e-2),
    "Rprop": lambda params: torch.optim.Rprop(params, lr=1e-2),
    "Adadelta": lambda params: torch.optim.Adadelta(params, lr=1e-2),
    "SGD with momentum": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
}


def cases() -> Iterator[Case]:
    import pytorch_optimizer

    for name, make in _TORCH.items():
        yield Case("torch", f"optim.{name}", optimized(_of_all(make)))
    for name in pytorch_optimizer.get_supported_optimizers():
        if isinstance(name, str):
            layouts = ("1", "fsdp2", "tp2 x fsdp2") if name in _ON_THREE else ("1", "fsdp2")
            yield Case("pytorch_optimizer", name, _of_pytorch_optimizer(name), layouts)
    for name in _TIMM:
        yield Case("timm", f"optim.{name}", _of_timm(name), ("1", "fsdp2"))
    for name in ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree", "AdamWScheduleFreeReference"):
        yield Case("schedulefree", name, _schedulefree(name, closure=False))
    for name in ("AdamWScheduleFreeClosure", "SGDScheduleFreeClosure", "RAdamScheduleFreeClosure"):
        yield Case("schedulefree", name, _schedulefree(name, closure=True), ("1", "fsdp2"))
    yield Case("schedulefree", "ScheduleFreeWrapper", optimized(_wrapped_schedulefree), ("1", "fsdp2"))
