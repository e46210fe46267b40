"""Which rank sends a piece that several hold: what their shards say, or a refusal on all of them before any waits."""

from __future__ import annotations

from typing import Any, Sequence

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.restore import replicate
from hyperpod_kit.checkpoint.state.tensors import TensorPiece


def pieces(rank: int, names: Sequence[str], world: int = 2) -> list[TensorPiece]:
    return [
        TensorPiece(TensorSpec(name, "F32", (2,), (), ()), torch.zeros(2), (rank, world), None, early=False)
        for name in names
    ]


class Gathered:
    """Ranks of which only the reasons are looked at."""

    rank = 0

    def __init__(self, everybody: Sequence[Any]) -> None:
        self.everybody = everybody

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.everybody]


@pytest.mark.parametrize(
    ("shards", "names", "words"),
    [
        ((["a", "c"], ["b"]), ["a", "b", "c", "d"], "d is in no shard of the ranks that hold it"),
        ((["a", "b", "c"], ["b"]), ["a", "b", "c"], "b is in 2 shards of the ranks"),
        # As numbers these sum up to what a full cover does.
        ((["a"], ["a"], ["a", "c", "d"]), ["a", "b", "c", "d"], "a is in 3 shards of the ranks"),
    ],
)
def test_a_piece_that_is_not_in_exactly_one_shard_is_named(
    shards: tuple[list[str], ...], names: list[str], words: str
) -> None:
    world = len(shards)
    tables = [replicate.build_shard_table(pieces(rank, names, world), here) for rank, here in enumerate(shards)]
    ranks: Any = Gathered([None] * (world - 1))
    answer = replicate.broadcast_read_pieces_to_holders(ranks, pieces(0, names, world), tables, "blake2b")
    assert words in str(answer.problems[0]) and not answer.any_lost


def test_ranks_with_other_names_for_what_they_hold_alike_are_refused() -> None:
    tables = [
        replicate.build_shard_table(pieces(0, ["a", "b"]), ["a"]),
        replicate.build_shard_table(pieces(1, ["a", "c"]), ["c"]),
    ]
    ranks: Any = Gathered([None])
    answer = replicate.broadcast_read_pieces_to_holders(ranks, pieces(0, ["a", "b"]), tables, "blake2b")
    assert all(answer.problems) and "the ranks disagree" in str(answer.problems[0])
