"""What a checkpoint holds: model, optimizer, other objects with a state_dict, and the trainer's own values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from hyperpod_kit.checkpoint import codec, randomness

# Replicated by DDP: equal on all ranks, so each byte is saved by one of them. Everything else is each rank's own.
REPLICATED = ("model", "optimizer")


@dataclass(frozen=True)
class Snapshot:
    """One rank's state, flat. `replicated` and `local` map names to live tensors (not copies)."""

    tree: dict[str, Any]
    replicated: dict[str, torch.Tensor]
    local: dict[str, torch.Tensor]
    pinned: frozenset[str] = field(default_factory=frozenset)  # names that rank 0 must save


class State:
    """The objects to save and to restore in place.

    `extra` is a dict of numbers, strings, bytes, lists, tuples, dicts and tensors, each rank its own; a restore
    replaces its contents. Other keyword arguments are objects with `state_dict` and `load_state_dict` (a scheduler, a
    loader). Random number generators are included unless `rng=False`.
    """

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, *,
                 extra: dict[str, Any] | None = None, rng: bool = True, **objects: Any) -> None:
        self.model = getattr(model, "module", model) if _is_ddp(model) else model
        self.optimizer = optimizer
        self.extra: dict[str, Any] = extra if extra is not None else {}
        self.rng = rng
        self.objects = objects

    def _parts(self) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        if self.model is not None:
            parts["model"] = self.model.state_dict()
        if self.optimizer is not None:
            parts["optimizer"] = self.optimizer.state_dict()
        for name, thing in self.objects.items():
            parts[f"objects.{name}"] = thing.state_dict()
        parts["extra"] = self.extra
        if self.rng:
            parts["rng"] = randomness.capture()
        return parts

    def snapshot(self, rank: int) -> Snapshot:
        """This rank's state as names, live tensors and JSON. Raises StateNotSerializable."""
        tree: dict[str, Any] = {}
        replicated: dict[str, torch.Tensor] = {}
        local: dict[str, torch.Tensor] = {}
        for name, part in self._parts().items():
            if name in REPLICATED:
                tree[name] = codec.encode(part, name, replicated)
            else:
                tree[name] = codec.encode(part, f"rank.{rank:05d}.{name}", local)
        pinned: frozenset[str] = frozenset()
        if self.model is not None:
            # DDP broadcasts rank 0's buffers before each forward pass, so only rank 0's are the model's.
            parameters = {f"model.{name}" for name, _ in self.model.named_parameters(remove_duplicate=False)}
            pinned = frozenset(n for n in replicated if n.startswith("model.") and n not in parameters)
        return Snapshot(tree, replicated, local, pinned)

    def load(self, tree: dict[str, Any], tensor: Callable[[str], torch.Tensor]) -> None:
        """Put a verified tree into the objects. Raises RuntimeError when model or optimizer do not fit it."""
        # The model copies out of the views. Everything else keeps what it gets, and must neither hold the whole
        # buffer nor see the file's alignment (torch's random generator faults on it): so it gets copies.
        decoded = {name: codec.decode(part, tensor if name == "model" else lambda key: tensor(key).clone())
                   for name, part in tree.items()}
        if self.model is not None:
            self.model.load_state_dict(decoded["model"], strict=True)
        if self.optimizer is not None:
            self.optimizer.load_state_dict(decoded["optimizer"])
        for name, thing in self.objects.items():
            thing.load_state_dict(decoded[f"objects.{name}"])
        self.extra.clear()
        self.extra.update(decoded["extra"])
        if self.rng and "rng" in decoded:
            randomness.restore(decoded["rng"])


def _is_ddp(model: object) -> bool:
    return isinstance(model, torch.nn.parallel.DistributedDataParallel)
