"""Shards as tables: nothing of what the pieces say is lost, in the index neither, and what is wrong is found."""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from typing import Any, Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hyperpod_kit.checkpoint.repository.format import compact_index, coverage, index, layout, rows, shard, shard_table
from hyperpod_kit.checkpoint.repository.format.shard import Placed, TensorSpec
from hyperpod_kit.errors import CheckpointError


def grid(name: str, shape: Tuple[int, int], cuts: Tuple[int, int]) -> List[List[TensorSpec]]:
    """Rank -> its boxes of a tensor that is cut so often in both dimensions, unevenly; a rank may have none."""
    found = []
    for one in range(cuts[0]):
        for other in range(cuts[1]):
            begins, extents = [], []
            for at, extent, count in zip((one, other), shape, cuts):
                each = -(-extent // count)
                begins.append(min(at * each, extent))
                extents.append(min((at + 1) * each, extent) - begins[-1])
            whole = tuple(extents) == shape
            spec = TensorSpec(name, "F32", tuple(extents), () if whole else tuple(begins), () if whole else shape)
            found.append([spec] if 0 not in extents else [])
    return found


@some.composite
def shards(draw: Any) -> List[Tuple[Placed, ...]]:
    """The shards of a run whose ranks form a grid, as they are laid out."""
    cuts = draw(some.sampled_from([(1, 1), (4, 1), (1, 3), (2, 2), (3, 2), (7, 1)]))
    world = cuts[0] * cuts[1]
    held: List[List[TensorSpec]] = [[] for _ in range(world)]
    for number in range(draw(some.integers(0, 6))):
        shape = draw(some.tuples(some.integers(1, 9), some.integers(1, 9)))
        for rank, boxes in enumerate(grid(f"model.w{number}", shape, cuts)):
            held[rank] += boxes
    for number in range(draw(some.integers(0, 5))):
        held[draw(some.integers(0, world - 1))].append(TensorSpec(f"optimizer.s{number}", "F32", ()))
    for rank in range(world):
        held[rank].append(TensorSpec(f"rank.{rank:05d}.rng", "U8", (draw(some.integers(0, 70)),)))
    return [
        shard.lay_out(specs, rank=rank, world=world, run_id="r" * 32, plan="p").tensors
        for rank, specs in enumerate(held)
    ]


def encoded(pieces: List[Tuple[Placed, ...]]) -> bytes:
    tables = [shard_table.build_table(one) for one in pieces]
    texts = [
        (one.pattern.to_json_bytes(), shard_table.encode_table_without_pattern(one))
        for one in tables
        if one is not None
    ]
    return compact_index.encode([(pattern.decode(), own.decode()) for pattern, own in texts])


def as_sets(found: Any) -> Dict[str, Any]:
    return {name: sorted(pieces) for name, pieces in found.items()}


@given(shards())
def test_both_versions_of_the_index_say_the_same(pieces: List[Tuple[Placed, ...]]) -> None:
    for one in pieces:
        table = shard_table.build_table(one)
        assert table is not None and shard_table.place_tensors(table) == one
    whole = index.build(dict(enumerate(pieces)))
    old, new = rows.decode_index_file(index.encode(whole)), rows.decode_index_file(encoded(pieces))
    assert as_sets(new) == as_sets(old) == as_sets(whole.tensors())
    assert len(new) == len(old)
    coverage.require_full_coverage(whole)
    coverage.table_rows_requiring_full_coverage(compact_index.decode(encoded(pieces)))
    assert rows.encode_index_file(dict(enumerate(pieces))) == encoded(pieces)


def test_shards_with_gaps_have_the_index_that_names_every_piece() -> None:
    pieces = (Placed(TensorSpec("a", "U8", (4,)), 64, 68), Placed(TensorSpec("b", "U8", (4,)), 72, 76))
    written = rows.encode_index_file({0: pieces})
    assert written.startswith(index.MAGIC)
    assert as_sets(rows.decode_index_file(written)) == as_sets(index.build({0: pieces}).tensors())


@given(shards(), some.randoms(use_true_random=False))
def test_what_is_near_a_box_has_all_that_meets_it(pieces: List[Tuple[Placed, ...]], dice: random.Random) -> None:
    whole = index.build(dict(enumerate(pieces)))
    for found in (rows.decode_index_file(index.encode(whole)), rows.decode_index_file(encoded(pieces))):
        for name, every in found.items():
            low = tuple(dice.randrange(extent + 1) for extent in every[0].spec.full_shape)
            shape = tuple(dice.randrange(extent - at + 1) for extent, at in zip(every[0].spec.full_shape, low))
            near = found.find_overlap_candidates(name, low, shape)
            assert {one for one in every if _meets(one, low, shape)} <= set(near) <= set(every)


def _meets(piece: index.Piece, low: Tuple[int, ...], shape: Tuple[int, ...]) -> bool:
    offsets = piece.spec.offsets or (0,) * len(low)
    return all(a < b + n and b < a + m for a, m, b, n in zip(offsets, piece.spec.shape, low, shape))


def _two(**changed: Any) -> List[Tuple[Placed, ...]]:
    """Two ranks that share a tensor of ten rows, the second one's box changed."""
    first = TensorSpec("w", "F32", (5, 2), (0, 0), (10, 2))
    second = TensorSpec("w", "F32", (5, 2), (5, 0), (10, 2))._replace(**changed)
    return [shard.lay_out([one], rank=0, world=2, run_id="r", plan="p").tensors for one in (first, second)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"offsets": (4, 0)}, "overlap"),
        ({"offsets": (6, 0)}, "outside"),
        ({"shape": (4, 2)}, "no shard has"),
        ({"dtype": "F16"}, "F16"),
        ({"full": (11, 2)}, "[11, 2]"),
    ],
)
def test_tables_that_do_not_make_up_a_tensor_are_refused(changed: Any, said: str) -> None:
    with pytest.raises(CheckpointError, match="tensor w: ") as refused:
        coverage.table_rows_requiring_full_coverage(
            [one for one in map(shard_table.build_table, _two(**changed)) if one is not None]
        )
    assert said in str(refused.value)


def test_a_tensor_that_is_twice_in_a_shard_is_refused() -> None:
    for again in (TensorSpec("w", "F32", (5, 2), (5, 0), (10, 2)), TensorSpec("w", "F32", (2,))):
        (one, _) = _two()
        table = shard_table.build_table((*one, Placed(again, one[-1].end, one[-1].end + again.nbytes)))
        assert table is not None
        with pytest.raises(CheckpointError, match="tensor w is twice in shard 0"):
            coverage.table_rows_requiring_full_coverage([table])


def test_tensors_with_gaps_between_them_have_no_table() -> None:
    (one, _) = _two()
    begin = one[-1].end + 64
    assert shard_table.build_table((*one, Placed(TensorSpec("b", "F32", ()), begin, begin + 4))) is None


def _index(text: bytes) -> bytes:
    body = compact_index.MAGIC + zlib.compress(text)
    return body + hashlib.blake2b(body, digest_size=16).digest()


def test_an_index_with_one_byte_changed_is_damaged() -> None:
    data = encoded(_two())
    for at in range(len(data)):
        with pytest.raises(CheckpointError):
            rows.decode_index_file(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for size in range(len(data)):
        with pytest.raises(CheckpointError):
            rows.decode_index_file(data[:size])


@pytest.mark.parametrize(
    ("patterns", "shards_"),
    [
        ([[["w"], [0]]], [[1, [0, [], []]]]),
        ([[["w"], [0]]], [[-1, [0, [], []]]]),
        ([[["w"], [0]]], [[0, [0, [], []]]]),
        ([[["w"], [7]]], []),
        ([[["w", "w"], [0, 0]]], []),
        ([[["w"], []]], []),
        ([[["w"], [0]]], [[0, [-1, [["F32", [1], [0], [2]]], []]]]),
        ([[["w"], [0]]], [[0, [0, [["F99", [1], [0], [2]]], []]]]),
        ([[["w"], [0]]], [[0, [0, [["F32", [1], [], []]], []]]]),
        ([[[], []]], [[0, [0, [], [[1, "w", "F32", []]]]]]),
        ([[[], []]], [[0, [0, [], [[0, "w", "F32", []], [0, "v", "F32", []]]]]]),
        ({}, []),
        ([None], [None]),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(patterns: Any, shards_: Any) -> None:
    with pytest.raises(CheckpointError, match="contradicts itself"):
        rows.decode_index_file(_index(json.dumps({"patterns": patterns, "shards": shards_}).encode()))


def test_few_bytes_that_say_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _index(b'{"patterns":[],"shards":[]}' + b" " * 100_000)
    assert not rows.decode_index_file(data)
    monkeypatch.setattr(layout, "LARGEST_SMALL", 50_000)
    with pytest.raises(CheckpointError, match="contradicts itself"):
        rows.decode_index_file(data)
