"""How two tensors of one type and shape differ: in how many items, and by how much at most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_INT64_DTYPES = (torch.int64, torch.uint64)
_EXACT = 2.0**62
"""Differences of 64-bit integers below it are taken of the integers: as floating numbers they would be rounded."""


@dataclass(frozen=True)
class ItemDifference:
    """Of `items` items, `changed` have other bits. `max_abs`: the largest |b - a|; `max_rel`: the largest of it over
    the larger of |a| and |b|, so 2 at most. Both are inf where a number became nan or infinite, or was so before."""

    items: int = 0
    changed: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0

    def join(self, other: ItemDifference) -> ItemDifference:
        """Return the difference of both together."""
        return ItemDifference(
            self.items + other.items,
            self.changed + other.changed,
            max(self.max_abs, other.max_abs),
            max(self.max_rel, other.max_rel),
        )


def compare(before: torch.Tensor, after: torch.Tensor) -> ItemDifference:
    """Compare contiguous host tensors of one type and shape, bit for bit."""
    count = before.numel()
    if count == 0:
        return ItemDifference()
    width = before.element_size()
    bits = [tensor.reshape(-1).view(torch.uint8).view(count, width) for tensor in (before, after)]
    if torch.equal(*bits):
        return ItemDifference(count)
    is_changed = (bits[0] != bits[1]).any(dim=1)
    changed_before, changed_after = (part[is_changed].reshape(-1) for part in bits)
    return ItemDifference(
        count, int(is_changed.sum()), *_largest_differences(changed_before, changed_after, before.dtype)
    )


def _largest_differences(before: torch.Tensor, after: torch.Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Return the largest absolute and relative difference of these items, which are given as bytes."""
    numbers_before, numbers_after = _as_float64(before, dtype), _as_float64(after, dtype)
    distance = (numbers_after - numbers_before).abs()
    if dtype in _INT64_DTYPES:
        exact = (after.view(torch.int64) - before.view(torch.int64)).double().abs()
        distance = torch.where(distance < _EXACT, exact, distance)
    magnitude = torch.maximum(numbers_before.abs(), numbers_after.abs())
    relative = torch.where(distance == 0, torch.zeros((), dtype=torch.float64, device="cpu"), distance / magnitude)
    return _largest_or_inf(distance), _largest_or_inf(relative)


def _as_float64(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert bytes of items of the type to float64, or complex128."""
    if dtype.is_complex:
        return torch.view_as_complex(data.view(dtype.to_real()).double().reshape(-1, 2))
    values = data.view(dtype)
    if dtype.is_floating_point and dtype.itemsize == 1:
        values = values.float()  # torch has no way from float8 to float64 for all of them
    return values.double()


def _largest_or_inf(values: torch.Tensor) -> float:
    """The largest; inf where one is no number."""
    largest = float(torch.nan_to_num(values, nan=math.inf, posinf=math.inf).max())
    return largest
