from __future__ import annotations

from typing import Dict, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository.control import Key
from hyperpod_kit.checkpoint.repository.coordinator import BYE, COMMIT, COMMITTED, DROPPED, PERSIST, Coordinator, Order


def key(seq: int) -> Key:
    return (1, seq, "a")


def kinds(orders: List[Order]) -> List[str]:
    return [order.kind for order in orders]


def test_a_capture_is_persisted_when_all_have_it_and_committed_when_all_wrote_it() -> None:
    brain = Coordinator(2)
    assert brain.sealed(0, key(1)) == []
    assert brain.sealed(1, key(1)) == [Order(PERSIST, key(1))]
    assert brain.persisted(1, key(1), "b") == []
    assert brain.persisted(0, key(1), "a") == [Order(COMMIT, key(1))]
    assert brain.reports(key(1)) == {0: "a", 1: "b"}
    assert kinds(brain.committed(key(1))) == [COMMITTED]


def test_a_skip_drops_only_that_save() -> None:
    brain = Coordinator(2)
    brain.sealed(0, key(1))
    brain.sealed(0, key(2))
    assert [(o.kind, o.key) for o in brain.skipped(1, key(2), "busy")] == [(DROPPED, key(2))]
    assert kinds(brain.sealed(1, key(1))) == [PERSIST]  # it was still sealing the older one
    assert kinds(brain.sealed(0, key(2))) == [DROPPED]


def test_a_rank_that_went_on_will_not_come_back() -> None:
    brain = Coordinator(2)
    brain.sealed(0, key(1))
    assert [(o.kind, o.key) for o in brain.sealed(1, key(2))] == [(DROPPED, key(1))]


def test_a_failed_write_never_becomes_a_commit() -> None:
    brain = Coordinator(2)
    brain.sealed(0, key(1))
    brain.sealed(1, key(1))
    assert kinds(brain.failed(1, key(1), "No space left on device")) == [DROPPED]
    assert brain.persisted(0, key(1), "a") == []


def test_a_rank_that_died_in_mid_copy_ends_the_wait() -> None:
    brain = Coordinator(2)
    brain.sealed(0, key(1))
    orders = brain.done(1, "its trainer is gone")
    assert kinds(orders) == [DROPPED] and "rank 1" in orders[0].why
    assert kinds(brain.sealed(0, key(2))) == [DROPPED]
    assert kinds(brain.done(0, "")) == [BYE]


def test_a_lost_agent_ends_what_it_had_not_written() -> None:
    brain = Coordinator(2)
    for rank in (0, 1):
        brain.sealed(rank, key(1))
    brain.done(0, "")
    assert kinds(brain.lost(1)) == [DROPPED, BYE]


def test_the_end_waits_for_the_commit() -> None:
    brain = Coordinator(1)
    brain.sealed(0, key(1))
    assert brain.done(0, "") == []
    assert kinds(brain.persisted(0, key(1), "a")) == [COMMIT]
    assert kinds(brain.committed(key(1))) == [COMMITTED, BYE]


@given(st.data())
def test_any_interleaving_commits_exactly_what_all_ranks_sealed(data: st.DataObject) -> None:
    world, saves = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    skips = data.draw(st.sets(st.tuples(st.integers(0, world - 1), st.integers(1, saves)), max_size=4))
    todo: Dict[int, List[Order]] = {
        rank: [Order("skip" if (rank, seq) in skips else "seal", key(seq)) for seq in range(1, saves + 1)]
        for rank in range(world)}
    brain, done, ends, byes = Coordinator(world), set(), {}, 0

    def obey(orders: List[Order]) -> None:
        nonlocal byes
        for order in orders:
            if order.kind == PERSIST:
                for rank in range(world):
                    todo[rank].insert(data.draw(st.integers(0, len(todo[rank]))), Order("write", order.key))
            elif order.kind == COMMIT:
                assert order.key is not None and sorted(brain.reports(order.key)) == list(range(world))
                obey(brain.committed(order.key))
            elif order.kind in (COMMITTED, DROPPED):
                assert ends.setdefault(order.key, order.kind) == order.kind
            else:
                byes += 1

    while len(done) < world:
        rank = data.draw(st.sampled_from([r for r in range(world) if r not in done]))
        # An agent says `done` after its trainer has ended; what is still to be written is written after that too.
        pending = [order for order in todo[rank] if order.kind != "write"]
        if not pending:
            done.add(rank)
            obey(brain.done(rank, "end"))
            continue
        order = todo[rank].pop(0)
        assert order.key is not None
        if order.kind == "seal":
            obey(brain.sealed(rank, order.key))
        elif order.kind == "skip":
            obey(brain.skipped(rank, order.key, "busy"))
        else:
            obey(brain.persisted(rank, order.key, rank))
    for rank in range(world):
        while todo[rank]:
            write = todo[rank].pop(0)
            assert write.key is not None
            obey(brain.persisted(rank, write.key, rank))
    for seq in range(1, saves + 1):
        whole = not any((rank, seq) in skips for rank in range(world))
        assert ends[key(seq)] == (COMMITTED if whole else DROPPED)
    assert byes == 1


def test_reports_of_unknown_captures_are_ignored() -> None:
    assert Coordinator(1).persisted(0, key(9), "x") == []
    with pytest.raises(KeyError):
        Coordinator(1).reports(key(9))
