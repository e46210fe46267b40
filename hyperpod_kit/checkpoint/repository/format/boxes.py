"""Where the bytes of a box lie in the tensor that it is cut from, in row-major order: runs of equal length."""

from __future__ import annotations

from typing import Iterator, Sequence, Tuple


class Runs:
    """Of the box at `offsets` with `extents`, in items, cut from a tensor of `shape` whose items have `item` bytes.

    A piece in its whole tensor, or what is wanted of a piece in that piece.
    """

    def __init__(self, shape: Sequence[int], offsets: Sequence[int], extents: Sequence[int], item: int) -> None:
        steps = [item] * len(shape)  # bytes from one item to the next, by dimension
        for dim in range(len(shape) - 2, -1, -1):
            steps[dim] = steps[dim + 1] * shape[dim + 1]
        outer = len(shape)  # dimensions before it are walked; the last of them that is cut makes the run
        while outer and extents[outer - 1] == shape[outer - 1]:
            outer -= 1
        outer = max(outer - 1, 0)
        self.begin = sum(offset * step for offset, step in zip(offsets, steps))
        self.length = item
        for extent in extents[outer:]:
            self.length *= extent
        self.count = 1
        for extent in extents[:outer]:
            self.count *= extent
        self._walked = tuple(zip(reversed(extents[:outer]), reversed(steps[:outer])))

    def contiguous_runs(self, begin_in_box: int, end_in_box: int) -> Iterator[Tuple[int, int, int]]:
        """Yield (offset in the box, offset in the tensor, size) of each contiguous run of the box's bytes
        [begin_in_box, end_in_box)."""
        while begin_in_box < end_in_box:
            number, inside = divmod(begin_in_box, self.length)
            size = min(self.length - inside, end_in_box - begin_in_box)
            offset = self.begin + inside
            for extent, step in self._walked:
                number, coordinate = divmod(number, extent)
                offset += coordinate * step
            yield begin_in_box, offset, size
            begin_in_box += size
