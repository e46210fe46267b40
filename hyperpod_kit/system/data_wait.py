"""How long the training loop of this process has waited for samples so far.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import time
from typing import Callable, Iterator, TypeVar

T = TypeVar("T")


class WaitedSeconds:
    """Counted by whoever hands samples to the loop."""

    def __init__(self) -> None:
        self.total = 0.0

    def seconds_so_far(self) -> float:
        """Return the seconds waited so far."""
        return self.total

    def iter_counting_waits(self, batches: Iterator[T], clock: Callable[[], float] = time.monotonic) -> Iterator[T]:
        """Yield the same batches, and add the time until each is there. Closes `batches` at the end."""
        try:
            while True:
                begin = clock()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                finally:
                    self.total += clock() - begin
                yield batch
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


LOOP = WaitedSeconds()
"""Of this process: a rank has one training loop."""
