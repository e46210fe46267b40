from __future__ import annotations

from typing import Dict, List, Set, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.agent.leader.coordinator import Coordinator
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import Order, OrderKind
from hyperpod_kit.checkpoint.agent.shm.control_page import Key


def key(seq: int) -> Key:
    return (1, seq, "a")


def kinds(orders: List[Order]) -> List[OrderKind]:
    return [order.kind for order in orders]


def captured(brain: Coordinator, seq: int) -> List[Order]:
    orders: List[Order] = []
    for rank in range(brain.world):
        orders += brain.captured(rank, key(seq))
    return orders


def test_all_write_as_soon_as_all_have_it_and_it_is_committed_when_all_wrote_it() -> None:
    brain = Coordinator(2)
    assert brain.captured(0, key(1)) == []
    assert brain.captured(1, key(1)) == [Order(OrderKind.PERSIST, key(1))]
    assert brain.sealed(0, key(1)) == []
    assert brain.persisted(0, key(1), "a") == []
    assert brain.sealed(1, key(1)) == [Order(OrderKind.SEALED, key(1))]
    assert brain.persisted(1, key(1), "b") == [Order(OrderKind.COMMIT, key(1))]
    assert brain.reports(key(1)) == {0: "a", 1: "b"}
    assert kinds(brain.committed(key(1))) == [OrderKind.COMMITTED]


def test_a_skip_drops_only_that_save() -> None:
    brain = Coordinator(2)
    brain.captured(0, key(1))
    brain.captured(0, key(2))
    assert [(o.kind, o.key) for o in brain.skipped(1, key(2), "busy")] == [(OrderKind.DROPPED, key(2))]
    assert kinds(brain.captured(1, key(1))) == [OrderKind.PERSIST]  # it was still busy with the older one
    assert kinds(brain.captured(0, key(2))) == [OrderKind.DROPPED]


def test_a_rank_that_went_on_will_not_come_back() -> None:
    brain = Coordinator(2)
    brain.captured(0, key(1))
    assert [(o.kind, o.key) for o in brain.captured(1, key(2))] == [(OrderKind.DROPPED, key(1))]


def test_a_failed_write_never_becomes_a_commit_but_memory_has_it_still() -> None:
    brain = Coordinator(2)
    captured(brain, 1)
    assert kinds(brain.failed(1, key(1), "No space left on device")) == [OrderKind.FAILED]
    assert brain.persisted(0, key(1), "a") == []
    assert brain.sealed(0, key(1)) == [] and kinds(brain.sealed(1, key(1))) == [OrderKind.SEALED]


def test_what_one_rank_cannot_seal_is_of_no_use_even_if_storage_has_it_half() -> None:
    brain = Coordinator(2)
    captured(brain, 1)
    brain.sealed(0, key(1))
    assert kinds(brain.failed(0, key(1), "No space left on device")) == [OrderKind.FAILED]
    assert kinds(brain.skipped(1, key(1), "its control page is damaged")) == [OrderKind.DROPPED]
    assert brain.sealed(1, key(1)) == []


def test_a_rank_that_died_in_mid_copy_ends_the_wait() -> None:
    brain = Coordinator(2)
    brain.captured(0, key(1))
    orders = brain.rank_done(1, "its trainer is gone")
    assert kinds(orders) == [OrderKind.DROPPED] and "rank 1" in orders[0].note
    assert kinds(brain.captured(0, key(2))) == [OrderKind.DROPPED]
    assert kinds(brain.rank_done(0, "")) == [OrderKind.SHUTDOWN]


def test_a_lost_agent_ends_what_it_had_not_written() -> None:
    brain = Coordinator(2)
    captured(brain, 1)
    brain.rank_done(0, "")
    assert kinds(brain.rank_lost(1)) == [OrderKind.FAILED, OrderKind.SHUTDOWN]


def test_a_lost_agent_that_had_written_its_part_does_no_harm() -> None:
    brain = Coordinator(2)
    captured(brain, 1)
    brain.persisted(1, key(1), "b")
    assert brain.rank_lost(1) == []
    assert kinds(brain.persisted(0, key(1), "a")) == [OrderKind.COMMIT]


def test_ranks_that_are_done_are_not_missing_what_they_have_not_said_again() -> None:
    """One agent died at the end of training and another took its place: it reports first, and its neighbours, who had
    long been done, after it. What all had sealed was dropped by that, in all memories."""
    brain = Coordinator(3)
    captured(brain, 1)
    for rank in range(3):
        brain.sealed(rank, key(1))
    assert brain.rank_done(1, "") == [] and brain.rank_done(2, "") == []
    brain.forget_all_unfinished_captures(0)
    assert brain.captured(0, key(1), from_earlier_start=True) == []
    assert brain.captured(1, key(1), from_earlier_start=True) == [] and brain.rank_done(1, "") == []
    assert brain.captured(2, key(1), from_earlier_start=True) == [Order(OrderKind.CHECK_COMMITTED, key(1))]


def test_what_a_rank_may_hold_whose_agent_is_gone_stays_in_the_others_memory() -> None:
    brain = Coordinator(3)
    captured(brain, 1)
    brain.forget_all_unfinished_captures(0)
    brain.captured(0, key(1), from_earlier_start=True)
    assert kinds(brain.rank_lost(2)) == [OrderKind.FAILED]
    assert kinds(brain.captured(1, key(1), from_earlier_start=True)) == [OrderKind.FAILED]
    brain = Coordinator(3)
    brain.rank_lost(2)
    assert kinds(brain.captured(0, key(1), from_earlier_start=True)) == [OrderKind.FAILED]
    assert kinds(brain.captured(0, key(2))) == [OrderKind.DROPPED], "made after it: its part can be nowhere"


def test_the_end_waits_for_the_commit() -> None:
    brain = Coordinator(1)
    brain.captured(0, key(1))
    assert brain.rank_done(0, "") == []
    assert kinds(brain.persisted(0, key(1), "a")) == [OrderKind.COMMIT]
    assert kinds(brain.committed(key(1))) == [OrderKind.COMMITTED, OrderKind.SHUTDOWN]


def test_what_an_earlier_start_captured_is_looked_for_on_storage_first() -> None:
    brain = Coordinator(2)
    brain.captured(0, key(1), from_earlier_start=True)
    assert brain.captured(1, key(1), from_earlier_start=True) == [Order(OrderKind.CHECK_COMMITTED, key(1))]
    assert brain.rank_done(0, "") == [] and brain.rank_done(1, "") == []
    assert kinds(brain.storage_checked(key(1), True)) == [OrderKind.COMMITTED, OrderKind.SHUTDOWN]
    brain = Coordinator(1)
    brain.captured(0, key(1), from_earlier_start=True)
    assert brain.storage_checked(key(1), False) == [Order(OrderKind.PERSIST, key(1))]
    assert brain.storage_checked(key(1), False) == []


def test_the_slow_tier_gets_one_at_a_time_and_the_newest_first() -> None:
    brain = Coordinator(2, local=True)
    for seq in (1, 2, 3):
        captured(brain, seq)
    assert brain.local_written(0, key(1), True) == []
    assert brain.local_written(1, key(1), True) == [Order(OrderKind.LOCAL, key(1)), Order(OrderKind.UPLOAD, key(1))]
    for seq in (2, 3):
        brain.local_written(0, key(seq), True)
        assert brain.local_written(1, key(seq), True) == [Order(OrderKind.LOCAL, key(seq))]
    brain.persisted(0, key(1), "a")
    assert kinds(brain.persisted(1, key(1), "b")) == [OrderKind.COMMIT]
    orders = brain.committed(key(1))
    assert [(o.kind, o.key) for o in orders] == [
        (OrderKind.COMMITTED, key(1)),
        (OrderKind.UPLOAD, key(3)),
        (OrderKind.OVERTAKEN, key(2)),
    ]
    assert kinds(brain.failed(1, key(3), "503")) == [OrderKind.FAILED]


def test_a_full_local_disk_costs_the_local_tier_only() -> None:
    brain = Coordinator(2, local=True)
    captured(brain, 1)
    brain.local_written(0, key(1), False)
    assert brain.local_written(1, key(1), True) == [Order(OrderKind.UPLOAD, key(1))]  # rank 0 uploads from memory


def test_the_end_waits_for_the_upload() -> None:
    brain = Coordinator(1, local=True)
    brain.captured(0, key(1))
    assert brain.rank_done(0, "") == []
    assert kinds(brain.local_written(0, key(1), True)) == [OrderKind.LOCAL, OrderKind.UPLOAD]
    assert kinds(brain.persisted(0, key(1), "a")) == [OrderKind.COMMIT]
    assert kinds(brain.committed(key(1))) == [OrderKind.COMMITTED, OrderKind.SHUTDOWN]


def test_what_is_over_is_forgotten() -> None:
    brain = Coordinator(1)
    for seq in range(1, 1000):
        brain.captured(0, key(seq))
        brain.sealed(0, key(seq))
        brain.persisted(0, key(seq), "a")
        brain.committed(key(seq))
    assert len(brain._captures) < 300


@given(st.data(), st.booleans())
def test_any_interleaving_commits_exactly_what_all_ranks_captured(data: st.DataObject, local: bool) -> None:
    """Each rank does its own things in order; what is ordered comes in between at any place."""
    world, saves = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    skips = data.draw(st.sets(st.tuples(st.integers(0, world - 1), st.integers(1, saves)), max_size=4))
    brain = Coordinator(world, local=local)
    todo: Dict[int, List[Tuple[str, Key]]] = {
        rank: [("skip" if (rank, seq) in skips else "capture", key(seq)) for seq in range(1, saves + 1)]
        for rank in range(world)
    }
    done: Set[int] = set()
    ends: Dict[Key, OrderKind] = {}
    full: Set[Key] = set()
    byes = 0

    def later(what: str, where: Key, ranks: List[int]) -> None:
        for rank in ranks:
            todo[rank].insert(data.draw(st.integers(0, len(todo[rank]))), (what, where))

    def obey(orders: List[Order]) -> None:
        nonlocal byes
        for order in orders:
            if order.kind == OrderKind.SHUTDOWN:
                byes += 1
                continue
            assert order.key is not None
            if order.kind == OrderKind.PERSIST:
                later("local" if local else "write", order.key, list(range(world)))
            elif order.kind == OrderKind.UPLOAD:
                later("write", order.key, list(range(world)))
            elif order.kind == OrderKind.COMMIT:
                assert sorted(brain.reports(order.key)) == list(range(world))
                obey(brain.committed(order.key))
            elif order.kind == OrderKind.SEALED:
                full.add(order.key)
            elif order.kind in (OrderKind.COMMITTED, OrderKind.DROPPED, OrderKind.OVERTAKEN):
                assert ends.setdefault(order.key, order.kind) == order.kind

    def step(rank: int) -> None:
        what, where = todo[rank].pop(0)
        if what == "capture":
            later("seal", where, [rank])
            obey(brain.captured(rank, where))
        elif what == "seal":
            obey(brain.sealed(rank, where))
        elif what == "skip":
            obey(brain.skipped(rank, where, "busy"))
        elif what == "local":
            obey(brain.local_written(rank, where, True))
        else:
            obey(brain.persisted(rank, where, rank))

    while len(done) < world or any(todo.values()):
        rank = data.draw(st.sampled_from([r for r in range(world) if todo[r] or r not in done]))
        # An agent says `done` after its trainer has ended; what is still to be written is written after that too.
        if rank not in done and not any(what in ("capture", "skip") for what, _ in todo[rank]):
            done.add(rank)
            obey(brain.rank_done(rank, "end"))
        else:
            step(rank)
    whole = {key(seq) for seq in range(1, saves + 1) if not any((rank, seq) in skips for rank in range(world))}
    assert full == whole
    for seq in range(1, saves + 1):
        expected = (OrderKind.COMMITTED, OrderKind.OVERTAKEN) if local else (OrderKind.COMMITTED,)
        assert ends[key(seq)] in (expected if key(seq) in whole else (OrderKind.DROPPED,))
    if whole:
        assert ends[max(whole)] == OrderKind.COMMITTED or local
        assert OrderKind.COMMITTED in {ends[one] for one in whole}
    assert byes == 1


def test_reports_of_unknown_captures_are_ignored() -> None:
    assert Coordinator(1).persisted(0, key(9), "x") == []
    with pytest.raises(KeyError):
        Coordinator(1).reports(key(9))
