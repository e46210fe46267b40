"""The shards of several ranks, sealed and written at a time; each is written close behind its digests.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Callable, Dict, List, Mapping

from hyperpod_kit.checkpoint.agent.persist.seal import SlotShard
from hyperpod_kit.checkpoint.agent.shm.shm_slots import OpenSlot
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord
from hyperpod_kit.errors import CheckpointError

AT_ONCE = 16
"""Ranks at a time: more than any node has devices."""


class NotSealed(CheckpointError):
    """What lies in memory cannot be sealed: it is damaged, or this interpreter has not its digest."""


def seal_and_write_all(
    slots: Mapping[int, OpenSlot], write: Callable[[int, SlotShard], FileRecord]
) -> Dict[int, FileRecord]:
    """Seal the shard of every rank and call `write(rank, shard)` for it, in threads; return the results by
    rank.

    Raises NotSealed, or what the lowest rank that failed raised, once all have ended.
    """
    with ThreadPoolExecutor(max(1, min(AT_ONCE, len(slots))), "flush") as pool:
        futures = {rank: pool.submit(_seal_and_write, rank, slots[rank], write) for rank in sorted(slots)}
    return {rank: future.result() for rank, future in futures.items()}


def _seal_and_write(rank: int, slot: OpenSlot, write: Callable[[int, SlotShard], FileRecord]) -> FileRecord:
    shard = SlotShard(slot.slot)
    failed: List[Exception] = []

    def seal() -> None:
        try:
            shard.seal()
        except Exception as err:
            failed.append(err)

    sealing = threading.Thread(target=seal, daemon=True, name=f"seal-{rank}")
    sealing.start()
    try:
        written = write(rank, shard)
    except CheckpointError:
        sealing.join()
        if failed:
            raise NotSealed(f"rank {rank}: {failed[0]}") from failed[0]
        raise
    finally:
        sealing.join()
    # The writer may be ready a moment before the page is.
    return replace(written, root=shard.page.shard.root)
