"""Digests of what several ranks hold: alike where the bytes are, and different where one of them is."""

from __future__ import annotations

import json
import random
from typing import Any, Dict, List, Tuple

import pytest

from hyperpod_kit.checkpoint.agent.leader.coordinator import Coordinator
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import OrderKind
from hyperpod_kit.checkpoint.agent.reports import replicas
from hyperpod_kit.checkpoint.agent.reports.replicas import Difference

KEY = (1, 1, "a")


def test_the_text_of_a_capture_carries_them_last_and_somebodys_own_key_of_that_name_is_not_taken_for_them() -> None:
    for tree in ({}, {"extra": {"replicas": {"all": "x"}}}, {"replicas_": 1, "rng": ["replicas", {"replicas": {}}]}):
        text = json.dumps(tree, separators=(",", ":")).encode()
        assert replicas.digests_by_holders_in_extra(text) == {} and replicas.append_replica_digests(text, {}) == text
        if tree:
            told = replicas.append_replica_digests(text, {"all": "d"})
            assert (
                replicas.digests_by_holders_in_extra(told)
                == {"all": "d"}
                == replicas.digests_by_holders_in_tree(json.loads(told))
            )
            assert {k: v for k, v in json.loads(told).items() if k != "replicas"} == tree


def test_only_ranks_that_hold_the_same_set_are_compared_and_one_that_did_not_compare_is_no_argument() -> None:
    assert replicas.find_difference({0: {"all": "a", "x": "1"}, 1: {"all": "a"}, 2: {}, 3: {"y": "2"}}) is None
    assert replicas.find_difference({0: {"x": "1"}, 2: {"x": "1"}, 3: {"x": "2"}, 5: {"x": "2"}}) == Difference(
        "x", (0, 3), 2, 4
    )


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (
            [("model.a", "F32 [2]", "1"), ("model.b", "F32 [3]", "9")],
            "model.b has other bytes on rank 0 than on rank 3; ",
        ),
        (
            [("model.a", "F32 [4]", "8"), ("model.b", "F32 [3]", "9")],
            "model.a is F32 [2] on rank 0 and F32 [4] on rank 3 (and 1 more)",
        ),
        ([("model.a", "F32 [2]", "1")], "model.b is on rank 0 and not on rank 3"),
        (
            [("model.a", "F32 [2]", "1"), ("model.b", "F32 [3]", "2"), ("model.c", "F32 [3]", "2")],
            "model.c is on rank 3 and not on rank 0",
        ),
    ],
)
def test_the_reason_names_the_tensor_the_ranks_and_the_way_out(second: List[Tuple[str, str, str]], text: str) -> None:
    first = [("model.a", "F32 [2]", "1"), ("model.b", "F32 [3]", "2")]
    said = replicas.explain_difference(Difference("all", (0, 3), 5, 8), first, second)
    assert said.startswith(text) and "5 of 8 ranks differ from rank 0" in said
    assert ("restore()" if "and not on" in text else "State(own=['model.") in said
    assert "rank 0 and rank 3" in replicas.explain_difference(Difference("all", (0, 3), 5, 8), first, None)


# --- rank 0's agent -------------------------------------------------------------------------------------------------


def _captured(brain: Coordinator, *held: Dict[str, str]) -> List[Any]:
    orders: List[Any] = []
    for rank, one in enumerate(held):
        orders += brain.captured(rank, KEY, replica_digests=one)
    return orders


def test_equal_ranks_write_at_once() -> None:
    orders = _captured(Coordinator(2), {"all": "a"}, {"all": "a"})
    assert [order.kind for order in orders] == [OrderKind.PERSIST]


def test_two_of_the_ranks_that_differ_are_asked_and_nothing_of_it_counts() -> None:
    brain = Coordinator(4)
    (order,) = _captured(brain, {"all": "a"}, {"all": "a"}, {"all": "b"}, {"all": "b"})
    assert (order.kind, order.note, order.ranks) == (OrderKind.COMPARE, "all", (0, 2))
    # Sealed by all, and still not: an older capture must not be given up for it.
    assert [order.kind for rank in range(4) for order in brain.sealed(rank, KEY)] == []
    assert brain.failed(1, KEY, "no space") == [] and brain.rank_done(0, "end") == []
    assert brain.refuse_capture_once_replica_tensors_reported(0, KEY, [("w", "F32 [1]", "1")]) == []
    (order,) = brain.refuse_capture_once_replica_tensors_reported(2, KEY, [("w", "F32 [1]", "2")])
    assert order.kind == OrderKind.REFUSED and order.note.startswith("w has other bytes on rank 0 than on rank 2")
    assert brain.persisted(0, KEY, "x") == [] and brain.skipped(1, KEY, "late") == [] and brain.sealed(3, KEY) == []


@pytest.mark.parametrize("how", ["trainer", "agent"])
def test_who_can_not_be_asked_any_more_is_not_waited_for(how: str) -> None:
    brain = Coordinator(2)
    _captured(brain, {"all": "a"}, {"all": "b"})
    (order, *_) = (
        brain.refuse_capture_once_replica_tensors_reported(1, KEY, None) if how == "trainer" else brain.rank_lost(1)
    )
    assert order.kind == OrderKind.REFUSED and "no longer known)" in order.note


def test_what_a_rank_cannot_seal_is_dropped_while_the_others_are_asked() -> None:
    brain = Coordinator(2)
    _captured(brain, {"all": "a"}, {"all": "b"})
    assert [order.kind for order in brain.skipped(1, KEY, "damaged")] == [OrderKind.DROPPED]
    assert (
        brain.refuse_capture_once_replica_tensors_reported(0, KEY, []) == []
        and brain.refuse_capture_once_replica_tensors_reported(1, KEY, []) == []
    )


def test_a_save_in_which_not_all_compared_goes_its_way() -> None:
    brain = Coordinator(2)
    assert [order.kind for order in _captured(brain, {"all": "a"}, {})] == [OrderKind.PERSIST]
    assert [order.kind for rank in (0, 1) for order in brain.sealed(rank, KEY)] == [OrderKind.SEALED]
    assert [order.kind for rank in (0, 1) for order in brain.persisted(rank, KEY, rank)] == [OrderKind.COMMIT]


# --- one rank's digests ---------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint.capture import replica_check  # noqa: E402
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec  # noqa: E402
from hyperpod_kit.checkpoint.state.tensors import TensorPiece  # noqa: E402
from hyperpod_kit.checkpoint.transfer import device, memory_copy  # noqa: E402

SIZES = [0, 1, 7, 4096, 4 * 2**20, 4 * 2**20 + 1, 8 * 2**20 + 5]


def _tensors() -> List[Any]:
    made = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in SIZES]
    nan = torch.tensor([float("nan"), 1.0])
    return [
        *made,
        nan,
        torch.tensor(3),
        torch.randn(6, 4).to(torch.bfloat16),
        torch.rand(9) > 0.5,
        torch.randn(3, 5, dtype=torch.complex64),
    ]


def _pieces(tensors: List[Any]) -> List[TensorPiece]:
    return [
        TensorPiece(TensorSpec(f"w{n}", "U8", tuple(tensor.shape)), tensor, (0, 2), None, early=bool(n % 3))
        for n, tensor in enumerate(tensors)
    ]


def _digest(tensors: List[Any], threads: int = 1) -> Tuple[Dict[str, str], List[str]]:
    made = replica_check.Comparison(_pieces(tensors), "xxh3")
    pool = memory_copy.Copier(threads)
    pool.start(made.host_digest_batches(early=True) + made.host_digest_batches(early=False)).help_and_wait()
    pool.close()
    return made.combined_digests_by_holders(), [value for _, _, value in made.tensor_digests_of_holders("all")]


def _fold(tensors: List[Any]) -> List[str]:
    return [bytes(row.numpy().tobytes()).hex() for row in device.digest_tensors(tensors)]


@pytest.mark.parametrize("digest", [lambda tensors: _digest(tensors)[1], _fold])
def test_equal_bytes_have_equal_digests_wherever_they_lie(digest: Any) -> None:
    tensors = _tensors()
    want = digest(tensors)
    elsewhere = [torch.cat([tensor.new_zeros(3), tensor.reshape(-1)])[3:].reshape(tensor.shape) for tensor in tensors]
    apart = [
        tensor.reshape(-1, 1).repeat(1, 2)[:, 0].reshape(tensor.shape)
        if tensor.dim() != 1
        else tensor.reshape(-1, 1).repeat(1, 2)[:, 0]
        for tensor in tensors
    ]
    assert not apart[5].is_contiguous() and digest(elsewhere) == want and digest(apart) == want
    conj = [*tensors[:-1], tensors[-1].conj().resolve_conj().conj()]
    assert conj[-1].is_conj() and digest(conj) == want


@pytest.mark.parametrize("digest", [lambda tensors: _digest(tensors)[1], _fold])
def test_one_bit_or_two_items_in_each_others_place_change_one_digest(digest: Any) -> None:
    tensors = _tensors()
    want = digest(tensors)
    dice = random.Random(5)
    for number, size in enumerate(SIZES[1:], 1):
        at = dice.randrange(size)
        flipped = tensors[number].clone()
        flipped[at] ^= 1 << dice.randrange(8)
        found = digest([*tensors[:number], flipped, *tensors[number + 1 :]])
        assert [n for n, (a, b) in enumerate(zip(want, found)) if a != b] == [number]
    swapped = tensors[4].clone()
    swapped[:16] = tensors[4][:16].roll(8)
    assert torch.equal(swapped[:16].sort().values, tensors[4][:16].sort().values)
    assert digest([*tensors[:4], swapped, *tensors[5:]])[4] != want[4]


def test_threads_give_one_answer_and_a_set_of_holders_one_digest() -> None:
    tensors = _tensors()
    assert _digest(tensors, 1) == _digest(tensors, 3)
    held, values = _digest(tensors)
    assert set(held) == {"all"} and len(values) == len(tensors)
    made = replica_check.Comparison(
        [
            TensorPiece(TensorSpec("w", "F32", (1,)), torch.zeros(1), (0, 2), None, False, holders=holders)
            for holders in ((0, 1), (0, 2), (0, 1))
        ],
        "xxh3",
    )
    assert len(made.combined_digests_by_holders()) == 2 and replica_check.short_id_of_holders(
        (0, 1)
    ) != replica_check.short_id_of_holders((0, 2))


def test_the_next_save_digests_the_bytes_of_its_own_moment_and_leaves_an_open_one_alone() -> None:
    tensors = _tensors()
    pieces, pool = _pieces(tensors), memory_copy.Copier(1)
    every = replica_check.ReplicaCheck(1, "xxh3")

    def compare(seq: int) -> Any:
        made = every.begin_comparison_if_due(seq, "p", pieces, last=False)
        assert made is not None
        pool.start(made.host_digest_batches(early=True) + made.host_digest_batches(early=False)).help_and_wait()
        return made, made.combined_digests_by_holders()

    first, before = compare(1)
    tensors[5][0] ^= 1
    second, after = compare(2)
    assert (
        second is not first
        and after != before
        and every.tensor_digests(1, "all") == first.tensor_digests_of_holders("all")
    )
    every.mark_equal(1)
    every.mark_equal(2)
    tensors[5][0] ^= 1
    third, again = compare(3)
    assert third is second and again == before == {"all": _digest_of(third)}
    assert replica_check.Comparison(pieces[1:], "xxh3").is_for_pieces(pieces) is False
    pool.close()


def _digest_of(made: replica_check.Comparison) -> str:
    return replicas.combine_digests(made.tensor_digests_of_holders("all"))


def test_compared_until_found_equal_then_every_so_often_and_after_a_failure_again() -> None:
    pieces = _pieces([torch.zeros(2)])
    one = replica_check.ReplicaCheck(4, "xxh3")

    def begins(seq: int, plan: str = "p", last: bool = False) -> bool:
        return one.begin_comparison_if_due(seq, plan, pieces, last=last) is not None

    assert begins(1) and begins(2)  # nobody has said yet how the first one ended
    assert begins(3)
    one.mark_equal(2)
    one.mark_equal(3)
    assert not begins(5) and not begins(6) and begins(6, last=True)
    one.mark_equal(6)
    assert not begins(7) and begins(7, plan="q")
    one.mark_equal(7)
    assert begins(8, plan="q") and one.tensor_digests(8, "all") is not None
    one.forget(8)
    assert begins(9, plan="q") and one.tensor_digests(8, "all") is None
    assert replica_check.ReplicaCheck(None, "xxh3").begin_comparison_if_due(1, "p", pieces, last=True) is None
    alone = [TensorPiece(TensorSpec("w", "F32", (1,)), torch.zeros(1), (0, 1), None, False)]
    assert replica_check.ReplicaCheck(1, "xxh3").begin_comparison_if_due(1, "p", alone, last=True) is None
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="compare is"):
            replica_check.ReplicaCheck(bad, "xxh3")  # type: ignore[arg-type]
