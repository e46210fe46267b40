"""Imports every package of the zoo: for a process from which the ranks of a layout are forked."""

from __future__ import annotations

import importlib
from typing import Any

import torch

PACKAGES = ("pytorch_optimizer", "torchao.optim", "torchmetrics", "geoopt", "ema_pytorch", "peft", "schedulefree")


def _uncompiled(function: Any = None, **options: Any) -> Any:
    """In place of `torch.compile`."""
    return function if function is not None else _uncompiled


def leave_uncompiled() -> None:
    """The same operations, without minutes of compiling. Before a package is imported that compiles its own."""
    torch.compile = _uncompiled  # type: ignore[assignment]


def import_all() -> None:
    """Raises ImportError."""
    from tests.zoo.cases_modules import timm

    leave_uncompiled()
    timm()
    for name in PACKAGES:
        importlib.import_module(name)
