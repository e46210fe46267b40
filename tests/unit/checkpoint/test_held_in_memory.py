"""What rank 0's agent decides about captures for memory."""

from __future__ import annotations

from typing import Dict, Iterable, List, Set, Tuple

from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.agent.leader.coordinator import Coordinator
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import Order, OrderKind
from hyperpod_kit.checkpoint.agent.shm.control_page import Key


def key(seq: int) -> Key:
    return (1, seq, "a")


def said(orders: List[Order]) -> List[Tuple[OrderKind, Key]]:
    return [(order.kind, order.key) for order in orders if order.key is not None]


def captured(brain: Coordinator, seq: int, *, memory: bool) -> List[Order]:
    return [order for rank in range(brain.world) for order in brain.captured(rank, key(seq), is_memory_only=memory)]


def sealed(brain: Coordinator, seq: int) -> List[Order]:
    return [order for rank in range(brain.world) for order in brain.sealed(rank, key(seq))]


def written(brain: Coordinator, seq: int) -> List[Order]:
    orders = [order for rank in range(brain.world) for order in brain.persisted(rank, key(seq), rank)]
    assert said(orders) == [(OrderKind.COMMIT, key(seq))]
    return brain.committed(key(seq))


def test_a_capture_for_memory_is_sealed_and_not_written() -> None:
    brain = Coordinator(2)
    assert captured(brain, 1, memory=True) == []
    assert said(sealed(brain, 1)) == [(OrderKind.SEALED, key(1))]


def test_a_newer_one_has_its_place_once_all_have_sealed_that() -> None:
    brain = Coordinator(2)
    captured(brain, 1, memory=True)
    sealed(brain, 1)
    captured(brain, 2, memory=True)
    assert brain.sealed(0, key(2)) == []
    assert said(brain.sealed(1, key(2))) == [(OrderKind.SEALED, key(2)), (OrderKind.OVERTAKEN, key(1))]
    captured(brain, 3, memory=False)
    assert said(sealed(brain, 3)) == [(OrderKind.SEALED, key(3)), (OrderKind.OVERTAKEN, key(2))]


def test_the_newest_is_written_when_training_ends() -> None:
    brain = Coordinator(2)
    for seq in (1, 2):
        captured(brain, seq, memory=True)
        sealed(brain, seq)
    assert said(brain.rank_done(1, "killed")) == [(OrderKind.PERSIST, key(2))]
    assert brain.rank_done(0, "") == []
    assert [order.kind for order in written(brain, 2)] == [OrderKind.COMMITTED, OrderKind.SHUTDOWN]


def test_what_is_becoming_whole_is_waited_for() -> None:
    """A rank that closes first says `done` before the others have told of the same capture."""
    brain = Coordinator(2)
    captured(brain, 1, memory=True)
    brain.captured(0, key(2), is_memory_only=True)
    assert brain.rank_done(0, "") == []
    assert said(brain.captured(1, key(2), is_memory_only=True)) == [(OrderKind.PERSIST, key(2))]
    brain = Coordinator(2)
    captured(brain, 1, memory=True)
    brain.captured(0, key(2), is_memory_only=True)
    brain.rank_done(0, "")
    assert said(brain.rank_done(1, "killed")) == [(OrderKind.DROPPED, key(2)), (OrderKind.PERSIST, key(1))]


def test_one_that_cannot_be_sealed_leaves_it_to_the_one_before() -> None:
    brain = Coordinator(1)
    captured(brain, 1, memory=True)
    sealed(brain, 1)
    captured(brain, 2, memory=True)
    assert said(brain.rank_done(0, "killed")) == [(OrderKind.PERSIST, key(2))]
    orders = brain.skipped(0, key(2), "its page is damaged")
    assert said(orders) == [(OrderKind.DROPPED, key(2)), (OrderKind.PERSIST, key(1))]
    assert [order.kind for order in written(brain, 1)] == [OrderKind.COMMITTED, OrderKind.SHUTDOWN]


def test_a_hurry_writes_the_newest_now_and_what_comes_after_it() -> None:
    brain = Coordinator(1)
    assert brain.set_hurried_and_persist_newest_in_memory() == []
    assert said(captured(brain, 1, memory=True)) == [(OrderKind.PERSIST, key(1))]
    assert captured(brain, 2, memory=True) == [] and captured(brain, 3, memory=True) == []  # one at a time
    sealed(brain, 2)
    sealed(brain, 3)
    assert said(written(brain, 1)) == [(OrderKind.COMMITTED, key(1)), (OrderKind.PERSIST, key(3))]


def test_a_save_for_storage_does_not_wait_beside_another_for_a_slot_that_memory_needs() -> None:
    """Slow storage: the second one is held, a newer one has its place, and storage gets that once it is free."""
    brain = Coordinator(1)
    assert said(captured(brain, 1, memory=False)) == [(OrderKind.PERSIST, key(1))]
    sealed(brain, 1)
    for seq, memory in ((2, True), (3, False), (4, True)):
        assert captured(brain, seq, memory=memory) == []
        sealed(brain, seq)
    assert said(written(brain, 1)) == [(OrderKind.COMMITTED, key(1)), (OrderKind.PERSIST, key(4))]
    assert captured(brain, 5, memory=True) == []
    assert said(written(brain, 4)) == [(OrderKind.COMMITTED, key(4))]  # and no more than was asked for


def test_without_captures_for_memory_saves_are_written_side_by_side_as_ever() -> None:
    brain = Coordinator(1)
    for seq in (1, 2, 3):
        assert said(captured(brain, seq, memory=False)) == [(OrderKind.PERSIST, key(seq))]


def test_a_lost_agent_ends_what_was_held_and_memory_has_it_still() -> None:
    brain = Coordinator(2)
    captured(brain, 1, memory=True)
    sealed(brain, 1)
    assert said(brain.rank_lost(1)) == [(OrderKind.FAILED, key(1))]
    assert [order.kind for order in brain.rank_done(0, "")] == [OrderKind.SHUTDOWN]


def test_an_agent_that_came_in_anothers_place_tells_again_and_nothing_is_written_for_it() -> None:
    brain = Coordinator(2)
    captured(brain, 1, memory=True)
    sealed(brain, 1)
    brain.forget_all_unfinished_captures(1)
    for rank in (0, 1):
        assert brain.captured(rank, key(1), from_earlier_start=True, is_memory_only=True) == []
    assert said(brain.rank_done(0, "")) == [(OrderKind.CHECK_COMMITTED, key(1))]  # it may have got there before


def test_a_rank_that_wants_it_on_storage_is_heard() -> None:
    brain = Coordinator(2)
    brain.captured(0, key(1), is_memory_only=True)
    assert said(brain.captured(1, key(1), is_memory_only=False)) == [(OrderKind.PERSIST, key(1))]


class Interleaving:
    """Agents of a run that do what the coordinator orders, each in an order of its own.

    `pending`: rank -> what is to come to it; `ends`: how each capture ended; `sealed`: captures that all have sealed;
    `shutdowns`: orders to end.
    """

    def __init__(self, data: st.DataObject, local: bool) -> None:
        self._data, self._local = data, local
        self.world, self.saves = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
        self._storage = data.draw(st.sets(st.integers(1, self.saves)))
        ranks = st.integers(0, self.world - 1)
        self.skips = data.draw(st.sets(st.tuples(ranks, st.integers(1, self.saves)), max_size=4))
        self.brain = Coordinator(self.world, local=local)
        self.pending: Dict[int, List[Tuple[str, Key]]] = {
            rank: [("skip" if (rank, seq) in self.skips else "capture", key(seq)) for seq in range(1, self.saves + 1)]
            for rank in range(self.world)
        }
        self.ends: Dict[Key, OrderKind] = {}
        self.sealed: Set[Key] = set()
        self.shutdowns = 0

    def has_captures_to_come(self, rank: int) -> bool:
        return any(event in ("capture", "skip") for event, _ in self.pending[rank])

    def _add_later(self, event: str, capture: Key, ranks: Iterable[int]) -> None:
        for rank in ranks:
            place = self._data.draw(st.integers(0, len(self.pending[rank])))
            self.pending[rank].insert(place, (event, capture))

    def obey(self, orders: List[Order]) -> None:
        for order in orders:
            if order.kind == OrderKind.SHUTDOWN:
                self.shutdowns += 1
            else:
                self._obey_about_capture(order)

    def _obey_about_capture(self, order: Order) -> None:
        assert order.key is not None
        if order.kind == OrderKind.PERSIST:
            assert order.key not in self.ends
            self._add_later("local" if self._local else "write", order.key, range(self.world))
        elif order.kind == OrderKind.UPLOAD:
            self._add_later("write", order.key, range(self.world))
        elif order.kind == OrderKind.COMMIT:
            self.obey(self.brain.committed(order.key))
        elif order.kind == OrderKind.SEALED:
            self.sealed.add(order.key)
        elif order.kind in (OrderKind.COMMITTED, OrderKind.DROPPED, OrderKind.OVERTAKEN):
            assert self.ends.setdefault(order.key, order.kind) == order.kind
            if order.kind == OrderKind.OVERTAKEN and not self._local:
                assert max(self.sealed) > order.key

    def step(self, rank: int) -> None:
        event, capture = self.pending[rank].pop(0)
        if event == "capture":
            self._add_later("seal", capture, [rank])
            self.obey(self.brain.captured(rank, capture, is_memory_only=capture[1] not in self._storage))
        elif event == "seal":
            self.obey(self.brain.sealed(rank, capture))
        elif event == "skip":
            self.obey(self.brain.skipped(rank, capture, "busy"))
        elif event == "local":
            self.obey(self.brain.local_written(rank, capture, True))
        else:
            self.obey(self.brain.persisted(rank, capture, rank))


@given(st.data(), st.booleans())
def test_any_interleaving_brings_the_newest_whole_one_to_storage(data: st.DataObject, local: bool) -> None:
    """Two cadences, skips, seals and writes in any order: the newest that all have is committed in the end, each
    capture has one end, nothing has another's place that not all have sealed, and there is one `bye`."""
    run = Interleaving(data, local)
    hurry = data.draw(st.integers(0, 30))
    done: Set[int] = set()
    while len(done) < run.world or any(run.pending.values()):
        hurry -= 1
        if hurry == 0:
            run.obey(run.brain.set_hurried_and_persist_newest_in_memory())
        rank = data.draw(st.sampled_from([rank for rank in range(run.world) if run.pending[rank] or rank not in done]))
        if rank not in done and not run.has_captures_to_come(rank):
            done.add(rank)
            run.obey(run.brain.rank_done(rank, "end"))
        else:
            run.step(rank)
    captures = {key(seq) for seq in range(1, run.saves + 1)}
    whole = captures - {key(seq) for _, seq in run.skips}
    assert run.sealed == whole and run.shutdowns == 1
    assert set(run.ends) == captures
    assert {capture for capture, kind in run.ends.items() if kind == OrderKind.DROPPED} == captures - whole
    if whole:
        assert run.ends[max(whole)] == OrderKind.COMMITTED
