"""Damage that a disk does."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Change one bit of the byte `at` (from the end when negative), in place."""
    with path.open("r+b") as file:
        file.seek(at, 2 if at < 0 else 0)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1 << bit]))
