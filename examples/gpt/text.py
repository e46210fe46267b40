"""Training text: all *.py files below a directory, as one tensor of bytes, and batches chosen by the step's number."""

from __future__ import annotations

from pathlib import Path

import torch


def read(folder: Path, limit: int) -> torch.Tensor:
    """The first `limit` bytes of all *.py files in the order of their paths: U8 [n].

    Raises FileNotFoundError when there is less than 64 KiB, OSError when a mount does not answer.
    """
    data = bytearray()
    for path in sorted(folder.rglob("*.py")):
        data += path.read_bytes()
        if len(data) >= limit:
            break
    if len(data) < 65536:
        raise FileNotFoundError(f"only {len(data)} bytes of *.py below {folder}")
    return torch.frombuffer(data[:limit], dtype=torch.uint8)


def batch(
    text: torch.Tensor, *, seed: int, step: int, rank: int, size: int, context: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, targets), int64 [size, context]. A pure function of its arguments: no loader has a state to lose."""
    dice = torch.Generator().manual_seed((seed * 1_000_003 + step) * 65_537 + rank)
    starts = torch.randint(len(text) - context - 1, (size,), generator=dice)
    rows = torch.stack([text[at : at + context + 1] for at in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]
