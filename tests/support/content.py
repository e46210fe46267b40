"""What the newest checkpoint of a root holds: the bytes of each tensor, and in whose shard they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Tuple

from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import layout, shard
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.open import as_store


def contents(root: Path) -> Dict[str, Tuple[int, TensorSpec, bytes]]:
    """Each byte was proved."""
    found = {}
    newest = selection.newest_valid(str(root))
    for record in verify.read_manifest(as_store(str(root)), newest.checkpoint_id).shards:
        assert record.rank is not None
        data = (root / newest.checkpoint_id / layout.shard_file(record.rank)).read_bytes()
        for placed in shard.parse(memoryview(data)).tensors:
            found[placed.spec.name] = record.rank, placed.spec, data[placed.begin : placed.end]
    return found
