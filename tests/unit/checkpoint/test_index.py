from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
from typing import List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository.format import coverage, index
from hyperpod_kit.checkpoint.repository.format.index import Index, Piece
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec, lay_out
from hyperpod_kit.errors import CheckpointError
from tests.support.examples import examples


def spec(name: str, shape: Tuple[int, ...], offsets: Tuple[int, ...] = (), full: Tuple[int, ...] = ()) -> TensorSpec:
    return TensorSpec(name, "F32", shape, offsets, full)


extents = st.integers(0, 2**14)
names = st.text("ab.é雪\0", min_size=1, max_size=8)


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    """Of at most 2**56 numbers; where it is a box, one that lies in its tensor."""
    whole = tuple(draw(extents) for _ in range(draw(st.integers(0, 4))))
    shape = whole
    offsets: Tuple[int, ...] = ()
    is_box = draw(st.booleans())
    if whole and is_box:
        offsets = tuple(draw(st.integers(0, extent)) for extent in whole)
        shape = tuple(draw(st.integers(0, extent - at)) for extent, at in zip(whole, offsets))
    full = whole if offsets else ()
    return TensorSpec(draw(names), draw(st.sampled_from(["F32", "BF16", "C64"])), shape, offsets, full)


@given(st.lists(st.builds(Piece, specs(), st.integers(0, 10**6), st.integers(0, 2**50)), max_size=12))
def test_round_trip(pieces: List[Piece]) -> None:
    made = Index(tuple(pieces))
    assert index.decode(index.encode(made)) == made


SMALL = Index(
    (
        Piece(spec("a.weight", (2, 3), (0, 0), (4, 3)), 0, 4096),
        Piece(spec("b", ()), 0, 4120),
        Piece(spec("a.weight", (2, 3), (2, 0), (4, 3)), 1, 4096),
    )
)


def test_every_flip_and_every_torn_end_is_found() -> None:
    data = index.encode(SMALL)
    for at, bit in itertools.product(range(len(data)), range(8)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        with pytest.raises(CheckpointError):
            index.decode(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            index.decode(data[:length])


def resealed(body: bytes | bytearray) -> bytes:
    """With a digest that fits."""
    return bytes(body) + hashlib.blake2b(body, digest_size=16).digest()


def test_an_index_that_contradicts_itself_is_refused() -> None:
    """Counts that do not fit the bytes, and a number of a name or of a kind that is not there."""
    body = index.encode(SMALL)[:-16]
    assert index.decode(resealed(body)) == SMALL
    counts = range(8, 8 + 5 * 8, 8)
    names = body.index(b"a.weightb") + len("a.weightb") + len("F32")
    for at in (*counts, names, names + 3 * 4):
        for more in (2, 200):
            damaged = bytearray(body)
            damaged[at] = damaged[at] + more & 0xFF
            with pytest.raises(CheckpointError, match="contradicts itself"):
                index.decode(resealed(damaged))


@examples(300)
@given(st.integers(0, 400), st.binary(min_size=1, max_size=9))
def test_nothing_but_checkpoint_error_comes_out_of_an_index(at: int, other: bytes) -> None:
    """Even with a digest that fits, nothing but CheckpointError comes out of `decode`."""
    body = bytearray(index.encode(SMALL)[:-16])
    at = 8 + at % (len(body) - 8)
    body[at : at + len(other)] = other
    with contextlib.suppress(CheckpointError):
        index.decode(resealed(body))


def test_built_from_the_layouts_of_shards() -> None:
    layouts = {
        rank: lay_out(
            [spec("w", (2, 3), (2 * rank, 0), (4, 3)), spec(f"own.{rank}", (5,))],
            rank=rank,
            world=2,
            run_id="r",
            plan="p",
        )
        for rank in range(2)
    }
    made = index.build({rank: found.tensors for rank, found in layouts.items()})
    coverage.require_full_coverage(made)
    assert {name: len(pieces) for name, pieces in made.tensors().items()} == {"w": 2, "own.0": 1, "own.1": 1}
    assert all(piece.begin >= 4096 for piece in made.pieces)


def boxes(full: Tuple[int, ...], *pieces: Tuple[Tuple[int, ...], Tuple[int, ...]]) -> Index:
    return Index(
        tuple(Piece(spec("w", shape, offsets, full), shard, 0) for shard, (offsets, shape) in enumerate(pieces))
    )


def test_what_covers_a_tensor() -> None:
    for good in (
        boxes((4, 6), ((0, 0), (4, 6))),
        boxes((4, 6), ((0, 0), (2, 3)), ((0, 3), (2, 3)), ((2, 0), (2, 3)), ((2, 3), (2, 3))),
        boxes((3, 3), ((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))),
        boxes((4,), ((0,), (4,)), ((4,), (0,))),
        Index((Piece(spec("s", ()), 0, 0), Piece(spec("empty", (0, 5)), 1, 0))),
        Index(()),
    ):
        coverage.require_full_coverage(good)


@pytest.mark.parametrize(
    "bad, words",
    [
        (boxes((4, 6), ((0, 0), (2, 6))), r"w: no shard has 12 items of \[4, 6\]"),
        (boxes((4,), ((0,), (2,)), ((1,), (3,))), r"overlap"),
        (boxes((4,), ((0,), (4,)), ((0,), (4,))), r"\[0:4\] is in 2 shards"),
        (boxes((4, 4), ((0, 0), (4, 2)), ((0, 0), (2, 4)), ((2, 2), (2, 2))), r"overlap"),
        (boxes((4,), ((0,), (2,)), ((3,), (2,))), r"outside of \[4\]"),
        (boxes((0, 4), ((0, 0), (0, 4)), ((0, 0), (0, 4))), r"empty and in 2 shards"),
        (Index((Piece(spec("w", (2,)), 0, 0), Piece(spec("w", (3,)), 1, 0))), r"shard 1 has F32 \[3\], shard 0"),
        (Index((Piece(spec("w", (2,)), 0, 0), Piece(spec("w", (2,)), 0, 8))), r"twice in shard 0"),
        (Index((Piece(spec("s", ()), 0, 0), Piece(spec("s", ()), 1, 0))), r"in 2 shards"),
    ],
)
def test_what_does_not(bad: Index, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        coverage.require_full_coverage(bad)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_any_cut_covers_and_any_loss_or_repetition_does_not(full: List[int], dice: random.Random) -> None:
    def cut(box: coverage.Box) -> List[coverage.Box]:
        dim = dice.randrange(len(box))
        begin, end = box[dim]
        if end - begin < 2 or dice.random() < 0.3:
            return [box]
        at = dice.randrange(begin + 1, end)
        return [part for half in ((begin, at), (at, end)) for part in cut((*box[:dim], half, *box[dim + 1 :]))]

    def pieces(parts: List[coverage.Box]) -> Index:
        return boxes(tuple(full), *[(tuple(b for b, _ in part), tuple(e - b for b, e in part)) for part in parts])

    parts = cut(tuple((0, extent) for extent in full))
    dice.shuffle(parts)
    coverage.require_full_coverage(pieces(parts))
    gone = dice.randrange(len(parts))
    for wrong in (parts[:gone] + parts[gone + 1 :], [*parts, parts[gone]]):
        if wrong:
            with pytest.raises(CheckpointError):
                coverage.require_full_coverage(pieces(wrong))
