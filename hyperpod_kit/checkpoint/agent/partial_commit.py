"""A commit without agents: each node hands in its shards, and whoever finds that all are there commits.

For `flush` after the end of a job whose last captures are spread over nodes that cannot talk to each other any more.
Beside its shards a node leaves a report per rank; the attempt's name follows from the capture, so all nodes use one.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Mapping, Optional

from hyperpod_kit.checkpoint.agent import assemble, flush_shards, partial_commit_reports, persist, seal, shard_report
from hyperpod_kit.checkpoint.agent.control_page import Page
from hyperpod_kit.checkpoint.agent.shm_slots import OpenSlot
from hyperpod_kit.checkpoint.repository import identity, layout, manifest
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.base import SMALL, Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.version import version

SealedSlots = Mapping[int, OpenSlot]
"""Rank -> its sealed slot and page; all of one capture."""


def shared_flush_checkpoint_id(page: Page) -> str:
    """The attempt that all nodes hand this capture in to; never the one that the agents were writing."""
    nonce = hashlib.blake2b(f"flush {page.origin.incarnation}".encode(), digest_size=3).hexdigest()
    return page.checkpoint_id(nonce)


def write_shards_and_try_commit(
    store: Store, slots: SealedSlots, options: Optional[persist.WriteOptions] = None
) -> bool:
    """Write this node's shards and their reports; True when the capture is committed with them.

    A node that comes later may still commit it, so the memory is not needed any more in either case. A shard without a
    report was left by a flush that was killed, and is written anew. Raises CheckpointError (NotSealed when it is what
    lies here that cannot be sealed), OSError.
    """
    page = next(iter(slots.values())).page
    checkpoint_id = shared_flush_checkpoint_id(page)

    def write(rank: int, shard: seal.SlotShard) -> manifest.FileRecord:
        try:
            return persist.write_shard(shard, store, checkpoint_id, options)
        except FileExistsError:
            store.delete(f"{checkpoint_id}/{layout.shard_file(rank)}")
            return persist.write_shard(shard, store, checkpoint_id, options)

    unreported = {
        rank: slot for rank, slot in slots.items() if not store.exists(f"{checkpoint_id}/{layout.report_file(rank)}")
    }
    for rank, record in sorted(flush_shards.seal_and_write_all(unreported, write).items()):
        failpoint("handed.before_report")
        partial_commit_reports.write_report(
            store, checkpoint_id, rank, shard_report.report_of(unreported[rank].slot, record)
        )
    failpoint("handed.before_commit")
    return _commit_if_complete(store, checkpoint_id, page.origin.world)


def _commit_if_complete(store: Store, checkpoint_id: str, world: int) -> bool:
    """Commit when every rank has handed in. Two nodes may do this at once: they write the same, and one is first."""
    reports = partial_commit_reports.read_reports(store, checkpoint_id, world)
    if reports is None:
        return False
    assembled = assemble.build_commit_files(reports, {"hyperpod_kit": version(), "writer": "flush"})
    for name, data in ((layout.EXTRA_FILE, assembled.extra), (layout.INDEX_FILE, assembled.index_bytes)):
        with contextlib.suppress(FileExistsError):
            store.create(f"{checkpoint_id}/{name}", data)
        if store.read(f"{checkpoint_id}/{name}", max(SMALL, len(data))) != data:
            raise CheckpointError(f"{name} of {checkpoint_id} is not what the ranks handed in")
    identity.require_run_identity(store, identity.RunIdentity(assembled.manifest.run, assembled.manifest.run_id))
    store.sync(checkpoint_id)
    with contextlib.suppress(FileExistsError):
        store.create(f"{checkpoint_id}/{layout.MANIFEST_FILE}", assembled.manifest.encode())
    return True
