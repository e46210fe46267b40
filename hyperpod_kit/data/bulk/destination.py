"""A destination whose mount is gone or gives no answer. What hangs in writing to it nobody can end but the process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from hyperpod_kit.data.reading.listing import call_bounded, storage_errors_as_data_unavailable
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.errors import DataUnavailable


@contextlib.contextmanager
def watch_mount(out: str, reply_timeout: float, on_lost: Callable[[DataUnavailable], object]) -> Iterator[None]:
    """Probe the mount of `out` now and all through the block: a thread calls `on_lost` with the error
    when it gives no answer for `reply_timeout` seconds. A disk of the machine's own is not asked.

    Raises DataUnavailable when it is gone, or does not answer, from the beginning.
    """
    mounts, end = SourceMounts(reply_timeout), threading.Event()
    with storage_errors_as_data_unavailable(out):
        call_bounded(mounts, out, lambda: os.path.exists(out))
    if mounts.bounded_calls_for(os.path.join(out, "")) is None:
        yield
        return

    def poll() -> None:
        while not end.wait(reply_timeout / 2):
            try:
                with storage_errors_as_data_unavailable(out), contextlib.suppress(FileNotFoundError):
                    call_bounded(mounts, out, lambda: os.statvfs(out))
            except DataUnavailable as err:
                if not end.is_set():
                    on_lost(err)
                return

    thread = threading.Thread(target=poll, name="hpk-data-destination", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
