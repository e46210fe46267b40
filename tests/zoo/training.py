"""What a case of the zoo is: a training program in miniature, built afresh from a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

WIDTH = 16
BATCH = 8
BEFORE, AFTER = 3, 10
"""Steps before the checkpoint, and after it."""


class NoSuchProgram(Exception):
    """The package cannot be trained so in this topology, with no checkpoint involved."""


class Layout:
    """Which ranks there are and how they divide a model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mesh: Any = None

    @property
    def is_sharded(self) -> bool:
        return self.mesh is not None

    def divide(self, model: Any) -> Any:
        """The model with its parameters divided among the ranks."""
        if not self.is_sharded:
            return model
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        if "tp" in self.mesh.mesh_dim_names:
            plan = {"first": ColwiseParallel(), "last": RowwiseParallel()}
            parallelize_module(model, self.mesh["tp"], plan)
        fully_shard(model, mesh=self.mesh["dp"])
        return model


def seed_everything(seed: int) -> None:
    """For packages that draw from the generators of numpy and of Python too."""
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


@dataclass
class Training:
    """One program under way. `objects` are what a State takes by name."""

    model: Any
    optimizer: Any = None
    objects: dict[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Any] | None = None
    """The loss of a batch; by default the model's output squared."""
    update: Callable[[Any, int], Any] | None = None
    """In place of everything that `step` does."""
    closure: bool = False
    create_graph: bool = False
    after_step: Callable[[int, float], Any] | None = None
    width: int = WIDTH

    def step(self, number: int) -> float:
        seed_everything(1000 + number)
        batch = torch.randn(BATCH, self.width)
        if self.update is not None:
            return float(self.update(batch, number))

        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = self.loss(batch) if self.loss is not None else (self.model(batch) - batch).square().mean()
            loss.backward(create_graph=self.create_graph)
            return loss

        if self.closure:
            loss = self.optimizer.step(closure)
            loss = closure() if loss is None else loss
        else:
            loss = closure()
            self.optimizer.step()
        value = float(loss.detach())
        if self.after_step is not None:
            self.after_step(number, value)
        return value


@dataclass(frozen=True)
class Case:
    """`make` builds the program from a seed. Its name is PACKAGE: WHAT."""

    package: str
    what: str
    make: Callable[[int, Layout], Training]
    layouts: tuple[str, ...] = ("1", "fsdp2", "tp2 x fsdp2")

    @property
    def name(self) -> str:
        return f"{self.package}: {self.what}"


def plain_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """This rank's part of a tensor, or the tensors that it is made of."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if type(local) in (torch.Tensor, torch.nn.Parameter) or not hasattr(local, "__tensor_flatten__"):
        yield local.detach()
        return
    for name in local.__tensor_flatten__()[0]:
        yield from plain_parts(getattr(local, name))


def digests(value: Any, path: str = "") -> dict[str, str]:
    """A digest of each tensor below `value`, and the text of everything else, by path."""
    if isinstance(value, torch.Tensor):
        made = hashlib.sha256(str(value.dtype).encode())
        for part in plain_parts(value):
            if part.is_quantized:
                part = part.int_repr()
            made.update(str(list(part.shape)).encode())
            part = part.resolve_conj().resolve_neg()
            made.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return {path: made.hexdigest()[:16]}
    if isinstance(value, dict):
        parts: Any = ((str(key), below) for key, below in value.items())
    elif isinstance(value, (list, tuple)):
        parts = ((str(index), below) for index, below in enumerate(value))
    else:
        text = repr(value)
        return {path: text if " at 0x" not in text and " object" not in text else type(value).__name__}
    return {key: text for name, below in parts for key, text in digests(below, f"{path}.{name}").items()}


def everything(training: Training) -> dict[str, str]:
    whole = {"model": training.model.state_dict()}
    if training.optimizer is not None:
        whole["optimizer"] = training.optimizer.state_dict()
    for name, thing in training.objects.items():
        whole[name] = thing.state_dict()
    return digests(whole)
