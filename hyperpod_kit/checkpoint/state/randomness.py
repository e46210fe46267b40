"""The states of the random number generators of one process."""

from __future__ import annotations

import random
import struct
import sys
from typing import Any

import torch

# The Mersenne Twister's words and its place in them; as bytes, because 625 numbers as JSON are felt in each save.
_TWISTER_STATE = struct.Struct("<625I")


def capture() -> dict[str, Any]:
    """Return the states of the random number generators: torch (CPU, and each CUDA device in use),
    Python, and numpy when it is imported."""
    version, state_words, gauss_next = random.getstate()
    out: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": (version, _TWISTER_STATE.pack(*state_words), gauss_next),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        out["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        out["numpy"] = encode_numpy(numpy.random.get_state())
    return out


def encode_numpy(state: Any) -> tuple[str, bytes, int, int, float]:
    """Return the state of one of numpy's RandomStates as plain values."""
    kind, keys, at, has_gauss, gauss = state
    return kind, keys.astype("<u4").tobytes(), int(at), int(has_gauss), float(gauss)


def decode_numpy(saved: Any) -> tuple[Any, ...]:
    """Return the state for numpy's `set_state` from the values of `encode_numpy`."""
    import numpy

    kind, keys, at, has_gauss, gauss = saved
    return kind, numpy.frombuffer(keys, dtype="<u4").astype(numpy.uint32), at, has_gauss, gauss


def restore(state: dict[str, Any]) -> None:
    """Set the random number generators to the states of `capture`. CUDA states beyond the devices that
    exist are left out."""
    torch.set_rng_state(state["torch"].cpu())
    version, state_bytes, gauss_next = state["python"]
    random.setstate((version, _TWISTER_STATE.unpack(state_bytes), gauss_next))
    if "cuda" in state and torch.cuda.is_available():
        for device, value in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(value.cpu(), device)
    if "numpy" in state:
        import numpy

        numpy.random.set_state(decode_numpy(state["numpy"]))
