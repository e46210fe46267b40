"""A commit without agents: each node hands in its shards, and whoever finds that all are there commits.

For `flush` after the end of a job whose last captures are spread over nodes that cannot talk to each other any more.
Beside its shards a node leaves a report per rank; the attempt's name follows from the capture, so all nodes use one.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Mapping, Optional

from hyperpod_kit.checkpoint.agent import assemble, flush_shards, handoff_reports, persist, seal, shard_report
from hyperpod_kit.checkpoint.agent.control_page import Page
from hyperpod_kit.checkpoint.agent.shm_slots import OpenSlot
from hyperpod_kit.checkpoint.repository import identity, layout, manifest
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.base import SMALL, Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.version import version

SealedSlots = Mapping[int, OpenSlot]
"""Rank -> its sealed slot and page; all of one capture."""


def attempt_of(page: Page) -> str:
    """The attempt that all nodes hand this capture in to; never the one that the agents were writing."""
    nonce = hashlib.blake2b(f"flush {page.origin.incarnation}".encode(), digest_size=3).hexdigest()
    return page.attempt(nonce)


def hand_in(store: Store, slots: SealedSlots, how: Optional[persist.How] = None) -> bool:
    """Write this node's shards and their reports; True when the capture is committed with them.

    A node that comes later may still commit it, so the memory is not needed any more in either case. A shard without a
    report was left by a flush that was killed, and is written anew. Raises CheckpointError (NotSealed when it is what
    lies here that cannot be sealed), OSError.
    """
    page = next(iter(slots.values())).page
    attempt = attempt_of(page)

    def write(rank: int, shard: seal.SlotShard) -> manifest.FileRecord:
        try:
            return persist.write_shard(shard, store, attempt, how)
        except FileExistsError:
            store.delete(f"{attempt}/{layout.shard_file(rank)}")
            return persist.write_shard(shard, store, attempt, how)

    left = {rank: slot for rank, slot in slots.items() if not store.exists(f"{attempt}/{layout.report_file(rank)}")}
    for rank, record in sorted(flush_shards.write_all(left, write).items()):
        failpoint("handed.before_report")
        handoff_reports.put(store, attempt, rank, shard_report.report_of(left[rank].slot, record))
    failpoint("handed.before_commit")
    return _complete(store, attempt, page.origin.world)


def _complete(store: Store, attempt: str, world: int) -> bool:
    """Commit when every rank has handed in. Two nodes may do this at once: they write the same, and one is first."""
    reports = handoff_reports.read(store, attempt, world)
    if reports is None:
        return False
    made = assemble.assemble(reports, {"hyperpod_kit": version(), "writer": "flush"})
    for name, data in ((layout.EXTRA_FILE, made.extra), (layout.INDEX_FILE, made.columns)):
        with contextlib.suppress(FileExistsError):
            store.create(f"{attempt}/{name}", data)
        if store.read(f"{attempt}/{name}", max(SMALL, len(data))) != data:
            raise CheckpointError(f"{name} of {attempt} is not what the ranks handed in")
    identity.confirm(store, identity.RunIdentity(made.manifest.run, made.manifest.run_id))
    store.sync(attempt)
    with contextlib.suppress(FileExistsError):
        store.create(f"{attempt}/{layout.MANIFEST_FILE}", made.manifest.encode())
    return True
