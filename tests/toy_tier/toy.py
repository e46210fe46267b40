"""A tier for tests: the directory that TOY_TIER names, which every node has, with a file for each shard."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.agent.shm import node_tiers
from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.read import stream
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.tiers.base import HeldShard, RankSite, Tier, Tree
from hyperpod_kit.checkpoint.transfer.load import ProvedShard
from hyperpod_kit.errors import DigestMismatch


class ToyTier(Tier):
    """`<checkpoint id>.json` has what is known of a shard, its non-tensor state and that one's digest."""

    name = "toy"
    node_tier = node_tiers.TOY  # type: ignore[attr-defined]  # in the copy of the tree

    def __init__(self, directory: Path, run_id: str, rank: int) -> None:
        self._directory, self._run_id, self._rank = directory, run_id, rank

    @classmethod
    def of_site(cls, site: RankSite) -> ToyTier | None:
        directory = os.environ.get("TOY_TIER")
        if directory is None:
            return None
        return cls(Path(directory), site.run_id, site.rank)

    def list_copies(self) -> list[HeldShard]:
        notes = [json.loads(path.read_text()) for path in sorted(self._directory.glob("*.json"))]
        return [
            HeldShard(
                self.name,
                note["checkpoint_id"],
                tuple(note["key"]),
                note["world"],
                note["plan"],
                note["root"],
                note["size"],
            )
            for note in notes
            if (note["run_id"], note["rank"]) == (self._run_id, self._rank)
        ]

    def read_proved_tree(self, shard_copy: HeldShard) -> Tree:
        note = self._read_note(shard_copy)
        actual_root = digest.small_object_digest(note["tree"].encode())
        if actual_root != note["tree_root"]:
            raise DigestMismatch(shard_copy.checkpoint_id, note["tree_root"], actual_root)
        return dict(json.loads(note["tree"]))

    @contextlib.contextmanager
    def open_shard(self, shard_copy: HeldShard) -> Iterator[ProvedShard]:
        note = self._read_note(shard_copy)
        reader = open_store(str(self._directory)).open_read(f"{shard_copy.checkpoint_id}.shard")
        try:
            shard = stream.Shard(reader, shard_copy.size, shard_copy.root, name="toy shard", chunk=note["chunk"])
            yield ProvedShard(shard)
        finally:
            reader.close()

    def _read_note(self, shard_copy: HeldShard) -> dict[str, Any]:
        return dict(json.loads((self._directory / f"{shard_copy.checkpoint_id}.json").read_text()))
