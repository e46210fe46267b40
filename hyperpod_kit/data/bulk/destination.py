"""A destination whose mount is gone or gives no answer. What hangs in writing to it nobody can end but the process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from hyperpod_kit.data.reading.listing import bounded, storage_of
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.errors import DataUnavailable


@contextlib.contextmanager
def watched(out: str, answer: float, lost: Callable[[DataUnavailable], object]) -> Iterator[None]:
    """Ask the mount of `out` now, and again all through the block: `lost` is called, by a thread, with the error when
    it gives no answer for `answer` seconds. A disk of the machine's own is not asked.

    Raises DataUnavailable when it is gone, or does not answer, from the beginning.
    """
    mounts, end = SourceMounts(answer), threading.Event()
    with storage_of(out):
        bounded(mounts, out, lambda: os.path.exists(out))
    if mounts.calls_of(os.path.join(out, "")) is None:
        yield
        return

    def ask() -> None:
        while not end.wait(answer / 2):
            try:
                with storage_of(out), contextlib.suppress(FileNotFoundError):
                    bounded(mounts, out, lambda: os.statvfs(out))
            except DataUnavailable as err:
                if not end.is_set():
                    lost(err)
                return

    thread = threading.Thread(target=ask, name="hpk-data-destination", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
