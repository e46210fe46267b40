"""What a caller may give for a step and for metrics: any integer, any real number. The rest is refused at the door."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, Literal

import torch

from hyperpod_kit.checkpoint.repository.format import manifest

OnBusy = Literal["skip", "wait", "replace"]
"""What a save does when no slot is free, see `Manager.save`."""


def checked_step(step: Any) -> int:
    """A step as an int: any integer type (`operator.index`: numpy's, a tensor with one integer).

    Raises TypeError for anything else, a float with a whole value included, ValueError below 0.
    """
    try:
        if isinstance(step, bool):
            raise TypeError
        number = operator.index(step)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"step is {_describe_value(step)}, expected an integer") from None
    if number < 0:
        raise ValueError(f"step is {number}, expected 0 or more")
    return number


def validate_and_encode_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float | str]:
    """Metrics as they are written down: floats, and what JSON has no number for as text, see `manifest.encode_number`.

    Raises TypeError unless every name is a string and every value a real number.
    """
    numbers: dict[str, float | str] = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a metric is {_describe_value(name)}, expected a string")
        numbers[name] = manifest.encode_number(_to_float(name, value))
    return numbers


def _to_float(name: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes, bytearray)):  # float() would read them
            raise TypeError
        if isinstance(value, torch.Tensor):
            return float(value.detach())
        return float(value)
    except OverflowError:
        if value > 0:
            return math.inf
        return -math.inf
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"metric {name!r} is {_describe_value(value)}, expected a number") from None


def _describe_value(value: Any) -> str:
    text = repr(value)
    if len(text) > 60:
        text = text[:60] + "..."
    return f"{text} ({type(value).__name__})"
