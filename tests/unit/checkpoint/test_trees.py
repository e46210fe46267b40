"""What ranks have in common of their trees, what each has besides, and what of it lies in their shards."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hyperpod_kit.checkpoint.agent.persist import seal
from hyperpod_kit.checkpoint.agent.reports import extra_state, shard_report
from hyperpod_kit.checkpoint.repository.format import layout, shard
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord
from hyperpod_kit.checkpoint.repository.read import rank_extra_state, verify
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError, DigestMismatch

values = (
    some.none()
    | some.integers()
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text()
    | some.lists(some.text())
)
any_tree = some.dictionaries(some.sampled_from("abcdef"), values)


@given(some.lists(any_tree, min_size=1, max_size=4), some.booleans(), some.integers(1, 6))
def test_each_rank_is_handed_what_makes_its_tree_of_what_is_shared(
    saved: list[Dict[str, Any]], stages: bool, world: int
) -> None:
    texts = [shard_report.split_json_object(json.dumps(tree)) for tree in saved]
    assert [{key: json.loads(text) for key, text in parts} for parts in texts] == saved
    extra = extra_state.encode(dict(enumerate(texts)), {}, has_pipeline_stages=stages)
    shared, parts = extra_state.split_shared_and_rank_parts(extra, world)
    assert len(parts) == world
    for rank, part in enumerate(parts):
        mine = {**json.loads(shared), **part.parts}
        assert mine == extra_state.parse_rank_tree_outside_shard(extra, rank)
        assert list(mine) == list(extra_state.parse_rank_tree_outside_shard(extra, rank))


ATTEMPT = "seq-000001.step-0000000001.e1-abcdef"


@given(some.lists(any_tree, min_size=1, max_size=4), some.sets(some.sampled_from("abcdef")), some.booleans())
def test_a_rank_s_own_part_comes_from_its_shard(saved: list[Dict[str, Any]], mine: set[str], stages: bool) -> None:
    with tempfile.TemporaryDirectory() as root:
        os.mkdir(f"{root}/{ATTEMPT}")
        told, places = {}, {}
        for rank, tree in enumerate(saved):
            # Of rank 0 all is told.
            own = json.dumps({key: value for key, value in tree.items() if rank and key in mine}).encode()
            image = b"\0" * (100 + rank) + own.ljust(rank_extra_state.reserved_bytes_with_growth_room(len(own)))
            Path(root, ATTEMPT, layout.shard_file(rank)).write_bytes(image)
            places[rank] = rank_extra_state.locate_in_image(memoryview(image), 100 + rank, len(image)) if rank else None
            told[rank] = shard_report.split_json_object(
                json.dumps({key: value for key, value in tree.items() if not (rank and key in mine)})
            )
        extra = extra_state.encode(told, places, has_pipeline_stages=stages)
        shared = extra_state.parse_rank_tree_outside_shard(extra, 0)
        for rank, tree in enumerate(saved):
            assert extra_state.read(open_store(root), ATTEMPT, extra, rank) == {**shared, **tree}
        assert extra_state.read(open_store(root), ATTEMPT, extra, len(saved)) == saved[0]
        assert json.loads(extra)["format"] == (
            layout.EXTRA_FORMAT_OF_SHARDS
            if len(saved) > 1
            else layout.EXTRA_FORMAT_OF_STAGES
            if stages
            else layout.EXTRA_FORMAT
        )


def test_each_rank_has_its_own_of_a_commit_and_extra_json_has_none(
    committed: Callable[..., Tuple[str, str]],
) -> None:
    root, attempt = committed(world=3, seq=4)
    store = open_store(root)
    body = verify.verify_checkpoint(store, attempt)
    extra = verify.read_verified_small_file(store, attempt, body.extra)
    for rank in range(3):
        assert extra_state.read(store, attempt, extra, rank) == {"extra": {"seq": 4}, "rng": rank}
    said = json.loads(extra)
    assert said["ranks"] == [{}, {}, {}] and said["own"][0] is None

    begin, size, _ = said["own"][2]
    damaged = Path(root, attempt, layout.shard_file(2))
    damaged.chmod(0o600)
    with damaged.open("r+b") as file:
        file.seek(begin + size - 3)
        file.write(b"7")
    with pytest.raises(DigestMismatch, match=r"shard-00002\.safetensors, its own tree"):
        extra_state.read(store, attempt, extra, 2)
    with pytest.raises(DigestMismatch):
        verify.verify_checkpoint(store, attempt)
    os.truncate(damaged, begin + 1)
    with pytest.raises(CheckpointError, match="ends before its own tree"):
        extra_state.read(store, attempt, extra, 2)
    assert extra_state.read(store, attempt, extra, 1)["rng"] == 1


@pytest.mark.parametrize(
    "said",
    [[0, 1], [-1, 1, "blake2b:00"], [0, 1 << 40, "blake2b:00"], [0, 1, "xxh3:00"], [0, 1, 7], "abc", [[], 1, "x"]],
)
def test_a_place_that_can_be_none_is_refused(said: Any) -> None:
    extra = extra_state.encode(
        {0: (), 1: ()}, {1: rank_extra_state.RankStateLocation(0, 1, "blake2b:00")}, has_pipeline_stages=False
    )
    body = {**json.loads(extra), "own": [None, said]}
    with pytest.raises(CheckpointError, match=r"extra\.json"):
        extra_state.split_shared_and_rank_parts(json.dumps(body).encode(), 2)


def test_a_tree_in_the_shard_that_is_not_the_capture_s_is_not_reported(capture: Callable[..., Any]) -> None:

    slot = capture(rank=1, world=2)
    begin, _ = shard.parse(slot.image).tree or (0, 0)
    image = slot.image
    assert bytes(image[begin : begin + 8]) == b'{"extra"'
    image[begin + 2 : begin + 7] = b"other"
    page = seal.seal(slot)
    with pytest.raises(CheckpointError, match="no part of the capture's tree"):
        shard_report.report_of(slot, FileRecord("shard-00001.safetensors", page.shard.size, page.shard.root, 1))
