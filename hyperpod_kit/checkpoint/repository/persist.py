"""Copy a slot to storage close behind its sealing: a chunk is written as soon as its leaf is computed.

The bytes go straight from the shared-memory mapping to the file, in ascending order and the leaves last.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Callable, Optional

from hyperpod_kit.errors import CheckpointError

from . import commit, layout, manifest
from .direct import DirectFile
from .failpoint import failpoint
from .seal import Sealing

PIECE = 16 * 1024 * 1024
"""Bytes a write. On the NVMe that this was tuned on, larger ones gain nothing and smaller ones cost 10 to 20 %."""


class Stopped(CheckpointError):
    """Asked to stop before the file was complete; the slot is as it was."""


class Pace:
    """A token bucket: at most `limit` bytes a second (None: no limit) until `lift` is called."""

    def __init__(self, limit: Optional[float] = None) -> None:
        self._limit = limit
        self._free_at = 0.0
        self._lifted = threading.Event()
        if not limit:
            self._lifted.set()

    def lift(self) -> None:
        """No limit from now on: nobody trains any more, or the machine is about to go."""
        self._lifted.set()

    def take(self, count: int) -> None:
        """Wait until `count` bytes may be written. For one thread."""
        if self._limit is None or self._lifted.is_set():
            return
        now = time.monotonic()
        wait = self._free_at - now
        self._free_at = max(now, self._free_at) + count / self._limit
        if wait > 0:
            self._lifted.wait(wait)


def write_shard(sealing: Sealing, folder: str, *, stopped: Optional[Callable[[], bool]] = None,
                pace: Optional[Pace] = None) -> manifest.FileRecord:
    """Write the image as this rank's shard into `folder`, synced. Returns its record.

    Raises Stopped, CheckpointError when the slot cannot be sealed, OSError (ENOSPC, EDQUOT, ESTALE, ...).
    """
    size, image = sealing.page.size, sealing.slot.image
    name = layout.shard_file(sealing.page.rank)
    file = DirectFile(os.path.join(folder, name))
    try:
        for at in range(0, size, PIECE):
            end = min(at + PIECE, size)
            if pace is not None:
                pace.take(end - at)
            if stopped is not None and stopped():
                raise Stopped(f"{name} stopped at byte {at}")
            sealing.covered(end)
            file.write(image[at:end], at)
            failpoint("persist.slice")
        failpoint("persist.before_sync")
        file.finish()
    except BaseException:
        file.abort()
        raise
    commit.sync_directory(folder)
    failpoint("persist.after_sync")
    return manifest.FileRecord(name, size, sealing.page.shard_root, sealing.page.rank)
