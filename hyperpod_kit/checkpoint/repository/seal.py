"""Seal a captured slot: compute its leaves into the image's tail, then its root into the control page."""

from __future__ import annotations

import os

from hyperpod_kit.errors import CheckpointError

from . import control, digest
from .arena import Slot
from .control import Page
from .failpoint import failpoint


def seal(slot: Slot) -> Page:
    """CAPTURED -> SEALED. Raises CheckpointError when the slot is not captured, DigestUnavailable."""
    page = slot.page
    if page is None or page.state != control.CAPTURED:
        raise CheckpointError(f"{slot.name.file('img')} holds no capture")
    alg = digest.algorithm(page.digest)
    data_end, _ = digest.split(page.size, page.chunk)
    threads = max(1, min(4, (os.cpu_count() or 1) // 2))
    leaves = digest.leaves_of(alg, slot.image[:data_end], chunk=page.chunk, threads=threads)
    slot.image[data_end:page.size] = leaves
    failpoint("seal.before_page")
    return slot.move(control.SEALED, shard_root=digest.root(alg, leaves, page.size))
