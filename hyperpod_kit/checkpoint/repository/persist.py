"""Copy a sealed slot to storage: the same bytes, in one pass from front to back."""

from __future__ import annotations

import os
from typing import Callable, Optional

from hyperpod_kit.errors import CheckpointError

from . import commit, control, layout, manifest
from .arena import Slot
from .failpoint import failpoint

_SLICE = 16 * 1024 * 1024


class Stopped(CheckpointError):
    """Asked to stop before the file was complete; the slot is as it was."""


def write_shard(slot: Slot, folder: str, *, stopped: Optional[Callable[[], bool]] = None) -> manifest.FileRecord:
    """Write the slot's image as this rank's shard into `folder`, synced. Returns its record.

    Raises Stopped, CheckpointError when the slot is not sealed, OSError (ENOSPC, EDQUOT, ESTALE, ...).
    """
    page = slot.page
    if page is None or page.state != control.SEALED:
        raise CheckpointError(f"{slot.name.file('img')} is not sealed")
    name = layout.shard_file(page.rank)
    fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        for at in range(0, page.size, _SLICE):
            if stopped is not None and stopped():
                raise Stopped(f"{name} stopped at byte {at}")
            commit.write_all(fd, slot.image[at:min(at + _SLICE, page.size)])
            failpoint("persist.slice")
        os.fsync(fd)
    finally:
        os.close(fd)
    commit.sync_directory(folder)
    return manifest.FileRecord(name, page.size, page.shard_root, page.rank)
