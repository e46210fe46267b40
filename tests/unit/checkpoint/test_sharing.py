"""Who reads which chunk, and in which round: each once, by somebody who needs it, within bounds of memory."""

from __future__ import annotations

import random
from collections import Counter
from typing import List, Set, Tuple

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint.dcp import reshard, sharing
from hyperpod_kit.checkpoint.transfer.load import Landing

Chunk = Tuple[int, int]


@pytest.mark.parametrize("seed", range(20))
def test_each_chunk_is_read_once_and_reaches_all_who_want_it(seed: int) -> None:
    draw = random.Random(seed)
    world = draw.choice([1, 2, 5, 33])
    chunks = [(shard, place) for shard in range(draw.randrange(1, 20)) for place in range(draw.randrange(1, 9))]
    needs: List[Set[Chunk]] = [set(draw.sample(chunks, draw.randrange(len(chunks) + 1))) for _ in range(world)]
    common = draw.sample(chunks, draw.randrange(len(chunks) // 2 + 1))
    kept = [
        draw.sample(chunks, min(2, len(chunks))) if rank == 0 and draw.random() < 0.5 else [] for rank in range(world)
    ]
    work = sharing.assign_readers(needs, common, kept)
    read = Counter([chunk for mine in work.alone for chunk in mine] + [share.chunk for share in work.shared])
    wanted = set(common).union(*needs)
    assert set(read) == wanted and set(read.values()) <= {1}
    for share in work.shared:
        if share.chunk in kept[0]:
            assert share.owner == 0, "it has it already"
        elif share.ranks:
            assert share.owner in share.ranks, "it needs it too"
        assert share.is_common == (share.chunk in common and world > 1)
        assert {rank for rank in range(world) if share.chunk in needs[rank]} == set(share.ranks)
    rounds = work.split_shared_into_bounded_rounds()
    assert sorted(share for part in rounds for share in part) == sorted(work.shared)
    for part in rounds:
        assert max(Counter(share.owner for share in part).values(), default=0) <= 4
        assert max(Counter(rank for share in part for rank in share.ranks).values(), default=0) <= 16


def test_what_is_wanted_of_a_chunk_has_each_byte_once() -> None:
    landing, memory = Landing(), torch.zeros(100, dtype=torch.uint8)
    for begin, end in [(40, 60), (10, 20), (15, 30), (30, 35), (90, 100), (55, 58)]:
        landing.add(begin, end, memory)
    landing.sort_ranges_and_synchronize_devices()
    assert landing.requested_ranges(0, 100) == [(10, 35), (40, 60), (90, 100)]
    assert landing.requested_ranges(12, 57) == [(12, 35), (40, 57)]
    assert landing.requested_ranges(60, 90) == []


def test_handing_on_is_given_up_only_where_all_reading_for_themselves_would_be_faster() -> None:
    assert not reshard.is_forwarding_too_slow([(0.1, 9.0), (0.1, 9.0)])
    assert reshard.is_forwarding_too_slow([(0.1, 11.0), (0.1, 2.0)])
    assert not reshard.is_forwarding_too_slow([(3.0, 11.0)] * 4)
