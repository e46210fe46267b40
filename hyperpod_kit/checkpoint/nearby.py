"""This rank's shard and tree from the tiers before the root: shared memory and the node's own disk."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from hyperpod_kit.checkpoint import load
from hyperpod_kit.checkpoint.candidates import Held
from hyperpod_kit.checkpoint.repository import arena, control, digest, layout, local, stream
from hyperpod_kit.checkpoint.repository.control import Key
from hyperpod_kit.checkpoint.snapshot import Piece
from hyperpod_kit.errors import CheckpointError, DigestMismatch

Tree = dict[str, Any]


def _slot(run_id: str, rank: int, key: Key) -> arena.Slot:
    """This rank's sealed slot of a capture. Raises CheckpointError when it is gone."""
    folder = arena.shm_dir()
    for slot in arena.attached(folder, arena.names(folder, uid=os.getuid(), run=arena.run_hash(run_id), rank=rank)):
        page = slot.page
        if page is not None and page.state == control.SEALED and page.key == key:
            return slot
        slot.close()
    raise CheckpointError("the capture is gone")


def tree_in_memory(run_id: str, rank: int, key: Key) -> Tree:
    """The non-tensor state of this rank's capture. Raises DigestMismatch, CheckpointError."""
    slot = _slot(run_id, rank, key)
    try:
        page = slot.page
        assert page is not None
        extra = slot.extra(page.extra_size)
        if digest.small(extra) != page.extra_root:
            raise DigestMismatch(slot.name.file("ctl"), page.extra_root, digest.small(extra))
        return dict(json.loads(extra))
    finally:
        slot.close()


def stream_memory(run_id: str, rank: int, held: Held, pieces: Mapping[str, Piece]) -> load.OwnShard:
    """Fill live tensors from this rank's capture. Raises DigestMismatch, CheckpointError."""
    slot = _slot(run_id, rank, held.key)
    try:
        page = slot.page
        assert page is not None
        image = stream.Mapped(slot.image[:page.size])
        own = load.stream_own(stream.Shard(image, held.size, held.root, name=slot.name.file("img"), chunk=page.chunk),
                              pieces)
        image.view.release()
        after = slot.page
        if after is None or after.state != control.SEALED or after.key != held.key:
            raise CheckpointError("the capture was freed while it was read")
        return own
    finally:
        slot.close()


def _part(directory: str, run_id: str, rank: int, attempt: str) -> local.Part:
    for part in local.reports(directory, arena.run_hash(run_id), rank):
        if part.attempt == attempt:
            return part
    raise CheckpointError(f"the part of {attempt} in {directory} is gone")


def tree_on_disk(directory: str, run_id: str, rank: int, attempt: str) -> Tree:
    """The non-tensor state of this rank's part. Raises DigestMismatch, CheckpointError, OSError."""
    report = _part(directory, run_id, rank, attempt).report
    found = digest.small(report.extra.encode())
    if found != report.page.extra_root:
        raise DigestMismatch(layout.report_file(rank), report.page.extra_root, found)
    return dict(json.loads(report.extra))


def stream_disk(directory: str, run_id: str, rank: int, held: Held, pieces: Mapping[str, Piece]) -> load.OwnShard:
    """Fill live tensors from this rank's part. Raises DigestMismatch, CheckpointError, OSError."""
    chunk = _part(directory, run_id, rank, held.attempt).report.page.chunk
    name = layout.shard_file(rank)
    reader = local.store(directory, arena.run_hash(run_id)).open_read(f"{held.attempt}/{name}")
    try:
        return load.stream_own(stream.Shard(reader, held.size, held.root, name=name, chunk=chunk), pieces)
    finally:
        reader.close()
