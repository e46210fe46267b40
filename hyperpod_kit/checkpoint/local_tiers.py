"""This rank's shard and tree from the tiers before the root: shared memory and the node's own disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hyperpod_kit.checkpoint.agent import local, shm_slots
from hyperpod_kit.checkpoint.agent.control_page import Key, Page, SlotState
from hyperpod_kit.checkpoint.candidates import HeldShard
from hyperpod_kit.checkpoint.load import ProvedShard
from hyperpod_kit.checkpoint.repository import digest, layout, stream
from hyperpod_kit.errors import CheckpointError, DigestMismatch

Tree = dict[str, Any]


def _find_sealed_slot(slots: Sequence[shm_slots.Slot], key: Key) -> tuple[shm_slots.Slot, Page]:
    """Return this rank's sealed slot of a snapshot, and its page. Raises CheckpointError when it is
    gone."""
    for slot in slots:
        page = slot.page
        if page is not None and page.state == SlotState.SEALED and page.key == key:
            return slot, page
    raise CheckpointError("the capture is gone")


def read_proved_tree_in_memory(slots: Sequence[shm_slots.Slot], key: Key) -> Tree:
    """Read and prove the non-tensor state of this rank's snapshot in memory. Raises DigestMismatch,
    CheckpointError."""
    slot, page = _find_sealed_slot(slots, key)
    extra = slot.read_extra(page.shard.extra_size)
    if digest.small_object_digest(extra) != page.shard.extra_root:
        raise DigestMismatch(slot.name.file("ctl"), page.shard.extra_root, digest.small_object_digest(extra))
    return dict(json.loads(extra))


@contextlib.contextmanager
def shard_in_memory(slots: Sequence[shm_slots.Slot], shard_copy: HeldShard) -> Iterator[ProvedShard]:
    """Open this rank's shard in memory for proved reading; its `confirm` raises CheckpointError when
    the slot was freed meanwhile. Raises DigestMismatch, CheckpointError."""
    slot, page = _find_sealed_slot(slots, shard_copy.key)

    def still_there() -> None:
        after = slot.page
        if after is None or after.state != SlotState.SEALED or after.key != shard_copy.key:
            raise CheckpointError("the capture was freed while it was read")

    image = stream.Mapped(slot.image[: page.shard.size])
    yield ProvedShard(
        stream.Shard(image, shard_copy.size, shard_copy.root, name=slot.name.file("img"), chunk=page.shard.chunk),
        still_there,
    )


def read_proved_tree_on_disk(directory: str, run_id: str, rank: int, checkpoint_id: str) -> Tree:
    """Read and prove the non-tensor state of this rank's part on the node's disk. Raises
    DigestMismatch, CheckpointError, OSError."""
    report = local.read_report(directory, shm_slots.run_hash(run_id), rank, checkpoint_id)
    actual_root = digest.small_object_digest(report.extra.encode())
    if actual_root != report.page.shard.extra_root:
        raise DigestMismatch(layout.report_file(rank), report.page.shard.extra_root, actual_root)
    return dict(json.loads(report.extra))


@contextlib.contextmanager
def shard_on_disk(directory: str, run_id: str, rank: int, shard_copy: HeldShard) -> Iterator[ProvedShard]:
    """Open this rank's shard on the node's disk for proved reading. Raises DigestMismatch,
    CheckpointError, OSError."""
    run_hash, name = shm_slots.run_hash(run_id), layout.shard_file(rank)
    chunk = local.read_report(directory, run_hash, rank, shard_copy.checkpoint_id).page.shard.chunk
    reader = local.open_local_store(directory, run_hash).open_read(f"{shard_copy.checkpoint_id}/{name}")
    try:
        yield ProvedShard(stream.Shard(reader, shard_copy.size, shard_copy.root, name=name, chunk=chunk))
    finally:
        reader.close()
