"""Calls side by side. The first that fails, or Ctrl-C, is the last: what has not begun does not begin any more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterator, Sequence, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> Iterator[Result]:
    """Apply `work` to every item, in up to `threads` threads, and yield the results in the order of the items.

    Raises the first exception in that order; work that has not begun by then is cancelled.
    """
    if not items:
        return
    pool = ThreadPoolExecutor(min(threads, len(items)))
    try:
        for future in [pool.submit(work, item) for item in items]:
            yield future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
