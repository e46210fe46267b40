"""A training state whose every byte follows from (seed, epoch, step): whatever is restored can be checked by itself.

`epoch` is in it because a run that was set back makes the same steps again: bytes of the abandoned branch must not
pass for those of the new one. The bytes are random, so floats are NaNs and denormals too; only bits are compared.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from hyperpod_kit.checkpoint.state.state import State

WIDTH = 32
"""About 80 KB of parameters and optimizer state. 800 gives some 60 MB, several digest chunks."""


class _Model(torch.nn.Module):
    """Tied, 0-dim, bfloat16 and integer tensors among ordinary ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = torch.nn.Parameter(torch.zeros(16, width))
        self.up = torch.nn.Parameter(torch.zeros(width, 4 * width))
        self.down = torch.nn.Parameter(torch.zeros(4 * width, width, dtype=torch.bfloat16))
        self.scale = torch.nn.Parameter(torch.zeros(()))
        self.head = self.embed
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))


def put_bytes(tensor: torch.Tensor, data: bytes) -> None:
    """Overwrite a tensor's elements with raw bytes; works for 0-dim and non-contiguous ones."""
    if not data:
        return
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if tensor.dtype == torch.bool:
        raw = raw & 1
    with torch.no_grad():
        tensor.copy_(raw.view(tensor.dtype).view(tensor.shape))


def get_bytes(tensor: torch.Tensor) -> bytes:
    """A tensor's elements as raw bytes, in the order of its shape."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


class Subject:
    """The objects that a life trains: `state` is what goes to the Manager."""

    def __init__(self, seed: int, rank: int = 0, *, width: int = WIDTH) -> None:
        self._seed = seed
        self._rank = rank
        self.model = _Model(width)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.extra: dict[str, Any] = {}
        self.state = State(self.model, self.optimizer, extra=self.extra, rng=False)

    def _named_tensors(self) -> dict[str, torch.Tensor]:
        tensors = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"{name}:{key}"] = value
        if "own" in self.extra:
            tensors[f"own of rank {self._rank}"] = self.extra["own"]
        return tensors

    def _expected_bytes(self, epoch: int, step: int, name: str, size: int) -> bytes:
        return random.Random(f"{self._seed}/{epoch}/{step}/{name}").randbytes(size)

    def fill(self, epoch: int, step: int) -> None:
        """Fill every tensor and `extra` with what follows from epoch and step."""
        for parameter in self.model.parameters():
            if not self.optimizer.state[parameter]:
                self.optimizer.state[parameter].update(
                    step=torch.zeros(()), exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter)
                )
        self.extra.setdefault("own", torch.zeros(50 + self._rank))
        self.extra["stamp"] = [epoch, step, self._rank]
        for name, tensor in self._named_tensors().items():
            put_bytes(tensor, self._expected_bytes(epoch, step, name, tensor.numel() * tensor.element_size()))

    def find_differences(self, epoch: int, step: int) -> list[str]:
        """Return the names of what is not as `fill(epoch, step)` leaves it; none when every bit is."""
        wrong = []
        if self.extra.get("stamp") != [epoch, step, self._rank]:
            wrong.append(f"stamp {self.extra.get('stamp')}")
        names = self._named_tensors()
        if len(names) != 6 + 3 * 4 + 1:
            wrong.append(f"{len(names)} tensors")
        if self.model.head is not self.model.embed:
            wrong.append("the tie")
        for name, tensor in names.items():
            if get_bytes(tensor) != self._expected_bytes(epoch, step, name, tensor.numel() * tensor.element_size()):
                wrong.append(name)
        return wrong

    def clear(self) -> None:
        """Zero all tensors and forget `extra`, so that nothing can look restored that was not."""
        for tensor in self._named_tensors().values():
            put_bytes(tensor, bytes(tensor.numel() * tensor.element_size()))
        self.extra.clear()
