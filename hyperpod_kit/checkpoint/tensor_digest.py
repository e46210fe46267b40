"""A digest of tensors where they lie: 128 bits of sums over mixed words, by operations that every device of torch has.

Equal bytes give equal digests on every device. It finds faults and differences; it does not stop a forger.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

_PART = 32 * 1024 * 1024  # bytes at once: the memory that it takes is a few times as much
_WORD = 8
# Odd, with about as many ones as zeros; one row a lane.
_MIX = (
    (-7046029254386353131, -4417276706812531889, 2870177450012600261),
    (-4265267296055464877, -2960836687055125679, -7723592293110705685),
)

_Part = tuple[int, torch.Tensor, int]
"""Number of the tensor, some of its bytes, the first word's place in it."""


def digest_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the digests of tensors on one device as a tensor of shape (count, 2) and type i64 on that
    device; does not wait for the device."""
    device = tensors[0].device
    out = torch.zeros(2, len(tensors), dtype=torch.int64, device=device)
    zeros = torch.zeros(_WORD, dtype=torch.uint8, device=device)
    for group in _groups(tensors):
        padded = torch.cat([piece for _, data, _ in group for piece in (data, zeros[: -data.numel() % _WORD])])
        counts = [-(-data.numel() // _WORD) for _, data, _ in group]
        starts = itertools.accumulate(counts, initial=0)
        values = padded.view(torch.int64)
        position = torch.arange(values.numel(), dtype=torch.int64, device=device)
        if len(group) == 1:
            _, _, first = group[0]
            for lane, mix in enumerate(_MIX):
                out[lane, group[0][0]] += _mixed(values, position + first, mix).sum()
            continue
        which = torch.repeat_interleave(
            torch.tensor([number for number, _, _ in group], device="cpu"), torch.tensor(counts, device="cpu")
        )
        shift = torch.repeat_interleave(
            torch.tensor([first - start for (_, _, first), start in zip(group, starts)], device="cpu"),
            torch.tensor(counts, device="cpu"),
        )
        which, shift = which.to(device), shift.to(device)
        for lane, mix in enumerate(_MIX):
            out[lane].index_add_(0, which, _mixed(values, position + shift, mix))
    return out.t()


def _mixed(values: torch.Tensor, position: torch.Tensor, mix: tuple[int, int, int]) -> torch.Tensor:
    mixed = (values ^ (position * mix[0])) * mix[1]
    mixed ^= mixed >> 29
    return mixed.mul_(mix[2])


def _groups(tensors: Sequence[torch.Tensor]) -> Iterator[list[_Part]]:
    """Yield the bytes of all tensors in groups of parts of at most _PART bytes."""
    group: list[_Part] = []
    filled = 0
    for number, tensor in enumerate(tensors):
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        for at in range(0, flat.numel(), _PART):
            data = flat[at : at + _PART]
            if filled + data.numel() > _PART:
                yield group
                group, filled = [], 0
            group.append((number, data, at // _WORD))
            filled += data.numel()
    if group:
        yield group
