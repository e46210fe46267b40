"""Which rank saves which replicated tensor: every byte once, about equally many on each rank."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Sequence

from hyperpod_kit.checkpoint.repository import digest
from hyperpod_kit.checkpoint.repository.shard import TensorSpec


def owners(specs: Iterable[TensorSpec], world: int, pinned: frozenset[str] = frozenset()) -> dict[str, int]:
    """Tensor name -> rank. Every rank computes the same; names in `pinned` go to rank 0."""
    ordered = sorted(specs, key=lambda spec: (-spec.nbytes, spec.name))
    out = {spec.name: 0 for spec in ordered if spec.name in pinned}
    load = [(sum(spec.nbytes for spec in ordered if spec.name in pinned) if rank == 0 else 0, rank)
            for rank in range(world)]
    heapq.heapify(load)
    for spec in ordered:
        if spec.name not in pinned:
            total, rank = heapq.heappop(load)
            out[spec.name] = rank
            heapq.heappush(load, (total + spec.nbytes, rank))
    return out


def fingerprint(specs: Sequence[TensorSpec], world: int, pinned: frozenset[str]) -> str:
    """Ranks with the same fingerprint save the same set of replicated tensors in the same partition."""
    body = [world, sorted(pinned), [[s.name, s.dtype, list(s.shape)] for s in sorted(specs)]]
    return digest.small(json.dumps(body, separators=(",", ":")).encode())
