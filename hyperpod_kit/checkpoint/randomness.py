"""The states of the random number generators of one process."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """torch (CPU, and each CUDA device in use), Python, and numpy when somebody imported it."""
    out: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        out["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, at, has_gauss, gauss = numpy.random.get_state()
        out["numpy"] = (kind, [int(key) for key in keys], int(at), int(has_gauss), float(gauss))
    return out


def restore(state: dict[str, Any]) -> None:
    """Undo `capture`. CUDA states beyond the devices that are here are left out."""
    torch.set_rng_state(state["torch"].cpu())
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        for device, value in enumerate(state["cuda"][:torch.cuda.device_count()]):
            torch.cuda.set_rng_state(value.cpu(), device)
    if "numpy" in state:
        import numpy
        kind, keys, at, has_gauss, gauss = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), at, has_gauss, gauss))
