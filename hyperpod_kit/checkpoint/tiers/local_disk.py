"""The node's own disk: the parts that this rank's agent has written there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from hyperpod_kit.checkpoint.agent.persist import local
from hyperpod_kit.checkpoint.agent.shm import node_tiers, shm_slots
from hyperpod_kit.checkpoint.repository.format import digest, layout
from hyperpod_kit.checkpoint.repository.read import stream
from hyperpod_kit.checkpoint.tiers.base import HeldShard, RankSite, Tier, Tree
from hyperpod_kit.checkpoint.transfer.load import ProvedShard
from hyperpod_kit.errors import DigestMismatch


class LocalDiskTier(Tier):
    """One rank's parts of its run below a directory."""

    name = "local"
    node_tier = node_tiers.LOCAL_DISK

    def __init__(self, directory: str, run_id: str, rank: int) -> None:
        self._directory = directory
        self._run_hash = shm_slots.run_hash(run_id)
        self._rank = rank

    @classmethod
    def of_site(cls, site: RankSite) -> LocalDiskTier | None:
        if site.local is None:
            return None
        return cls(site.local, site.run_id, site.rank)

    def list_copies(self) -> list[HeldShard]:
        with contextlib.suppress(OSError):
            return [_held_shard_of(part) for part in local.list_parts(self._directory, self._run_hash, self._rank)]
        return []

    def read_proved_tree(self, shard_copy: HeldShard) -> Tree:
        report = local.read_report(self._directory, self._run_hash, self._rank, shard_copy.checkpoint_id)
        actual_root = digest.small_object_digest(report.extra.encode())
        if actual_root != report.page.shard.extra_root:
            raise DigestMismatch(layout.report_file(self._rank), report.page.shard.extra_root, actual_root)
        return dict(json.loads(report.extra))

    @contextlib.contextmanager
    def open_shard(self, shard_copy: HeldShard) -> Iterator[ProvedShard]:
        name = layout.shard_file(self._rank)
        report = local.read_report(self._directory, self._run_hash, self._rank, shard_copy.checkpoint_id)
        store = local.open_local_store(self._directory, self._run_hash)
        reader = store.open_read(f"{shard_copy.checkpoint_id}/{name}")
        try:
            chunk = report.page.shard.chunk
            yield ProvedShard(stream.Shard(reader, shard_copy.size, shard_copy.root, name=name, chunk=chunk))
        finally:
            reader.close()


def _held_shard_of(part: local.Part) -> HeldShard:
    page, record = part.report.page, part.report.record
    return HeldShard(
        LocalDiskTier.name,
        part.checkpoint_id,
        page.key,
        page.origin.world,
        page.shard.plan,
        record.root,
        record.size,
    )
