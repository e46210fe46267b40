"""Large tensors in blocks of bounded size, each of which is one run of bytes in whatever piece it lies."""

from __future__ import annotations

import math
from collections.abc import Iterator

Extents = tuple[int, ...]


def blocks(shape: Extents, most: int) -> Iterator[tuple[Extents, Extents]]:
    """(offsets, extents) of blocks of at most `most` items that make up a tensor of this shape, in its order."""
    if math.prod(shape) <= most:
        yield (0,) * len(shape), shape
        return
    row = math.prod(shape[1:])
    if row > most:
        for at in range(shape[0]):
            for offsets, extents in blocks(shape[1:], most):
                yield (at, *offsets), (1, *extents)
        return
    step = most // row
    for at in range(0, shape[0], step):
        yield (at, *(0,) * (len(shape) - 1)), (min(step, shape[0] - at), *shape[1:])
