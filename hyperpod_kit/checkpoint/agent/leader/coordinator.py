"""What rank 0's agent decides, as a state machine without clock, disk or network.

A capture goes, with one tier: captured by every rank -> `persist` (all seal and write at once) -> persisted by every
rank -> `commit` (rank 0 writes the manifest) -> `committed`. With a node-local tier: -> `persist` (to the local disk)
-> `local` -> `upload`, one at a time and the newest first -> `commit` -> `committed`. Beside that, once every rank has
*sealed* it, all are told (`sealed`): only then may an older generation leave the memory.

A capture for memory is `held` when every rank has it, until a newer one is sealed by all. The newest goes the way of
the others once training ends, somebody is in a hurry, or a save for storage found storage busy and waits like it.

Where the save compares what several ranks hold (see replicas), that is the first thing to be done once all ranks have
it: two ranks that differ are asked in which tensor (`which`), and nothing is sealed for all, written or committed.

Where storage has no room for it, rank 0's agent gives up what the policy would let go with it (`clear`), one checkpoint
at a time, and all write once more, until it is there or nothing can be given up.

It ends otherwise as
    refused     ranks differ in what they should hold alike: of use to nobody, in memory neither
    dropped     a rank will never have it (skipped, died in mid-copy, went on, could not seal): of no use to anybody
    failed      a rank could not write it; memory and local disks still hold all of it
    overtaken   a newer one goes to storage in its place (the same holds), or is in memory in its place
"""

from __future__ import annotations

import enum
from typing import Any, Dict, List, Optional, Set

from hyperpod_kit.checkpoint.agent.protocol.rank_channel import Order, OrderKind
from hyperpod_kit.checkpoint.agent.reports import replicas
from hyperpod_kit.checkpoint.agent.shm.control_page import Key


class CaptureState(enum.Enum):
    """Where a capture is. What is neither CAPTURING nor busy has had its end."""

    CAPTURING = "capturing"
    COMPARING = "comparing"
    IN_MEMORY = "held"
    CHECKING_STORAGE = "looking"
    PERSISTING = "persisting"
    WAITING = "waiting"
    UPLOADING = "uploading"
    COMMITTING = "committing"
    CLEARING = "clearing"
    COMMITTED = "committed"
    REFUSED = "refused"
    DROPPED = "dropped"
    FAILED = "failed"
    OVERTAKEN = "overtaken"

    @property
    def is_complete_and_in_progress(self) -> bool:
        """Every rank has it, it has had no end, and something is being done with it."""
        return self in _BUSY

    @property
    def is_end(self) -> bool:
        return self in _END_ORDERS


_BUSY = frozenset(
    {
        CaptureState.COMPARING,
        CaptureState.CHECKING_STORAGE,
        CaptureState.PERSISTING,
        CaptureState.WAITING,
        CaptureState.UPLOADING,
        CaptureState.COMMITTING,
        CaptureState.CLEARING,
    }
)
_END_ORDERS = {
    CaptureState.COMMITTED: OrderKind.COMMITTED,
    CaptureState.REFUSED: OrderKind.REFUSED,
    CaptureState.DROPPED: OrderKind.DROPPED,
    CaptureState.FAILED: OrderKind.FAILED,
    CaptureState.OVERTAKEN: OrderKind.OVERTAKEN,
}
"""What all agents are told of an end."""

_REMEMBERED = 256
"""Captures that have had their end and are still known, so that a late report about one is not taken for a new one."""


class _Capture:
    def __init__(self) -> None:
        self.captured: Set[int] = set()
        self.sealed: Set[int] = set()
        self.local: Dict[int, bool] = {}
        self.reports: Dict[int, Any] = {}
        self.no_room: Dict[int, str] = {}
        """Ranks that found storage full, and in which words."""
        self.retry = OrderKind.PERSIST
        """What is ordered once there is room."""
        self.adopted = False
        self.memory = True
        """All who captured it say that it need not go to storage."""
        self.replicas: Dict[int, replicas.Replicas] = {}
        self.difference: Optional[replicas.Difference] = None
        self.tensors: Dict[int, replicas.Tensors] = {}
        self.state = CaptureState.CAPTURING


class Coordinator:
    """Reports of ranks in, orders out. Every method returns the orders that follow, in their order."""

    def __init__(self, world: int, *, local: bool = False) -> None:
        self.world = world
        self._local = local
        self._captures: Dict[Key, _Capture] = {}
        self._done: Set[int] = set()
        self._lost: Set[int] = set()
        """Of those that are done, the ranks whose agents are gone: nobody can say any more what these hold."""
        self._is_shut_down = False
        self._hurried = False
        self._has_memory_saves = False
        """Some saves are for memory."""
        self._is_storage_save_due = False
        """A save for storage waits until storage is free."""

    def reports(self, key: Key) -> Dict[int, Any]:
        return self._captures[key].reports

    # --- memory -------------------------------------------------------------------------------------------------

    def captured(
        self,
        rank: int,
        key: Key,
        *,
        from_earlier_start: bool = False,
        is_memory_only: bool = False,
        replica_digests: Optional[replicas.Replicas] = None,
    ) -> List[Order]:
        """Record that `rank` has all bytes of this capture. Ranks report captures in the order in which they made
        them.

        `from_earlier_start`: it may be on storage already, and the result of CHECK_COMMITTED decides.
        `replica_digests`: the digests of what this rank holds together with others, where the save compares.
        `is_memory_only`: it need not go to storage.
        """
        orders = self._drop_older_not_captured_by(rank, key)
        self._forget_ended_beyond_limit()
        capture = self._captures.setdefault(key, _Capture())
        capture.captured.add(rank)
        capture.adopted = capture.adopted or from_earlier_start
        capture.memory = capture.memory and is_memory_only
        self._has_memory_saves = self._has_memory_saves or is_memory_only
        capture.replicas[rank] = replica_digests or {}
        if capture.state is CaptureState.DROPPED:
            orders.append(Order(OrderKind.DROPPED, key, "another rank does not have the capture"))
        elif capture.state in _END_ORDERS:
            # Of an agent that has come back and did not hear it.
            orders.append(Order(_END_ORDERS[capture.state], key))
        elif capture.state is CaptureState.CAPTURING and len(capture.captured) == self.world:
            orders += self._compare_replicas_and_proceed(key, capture)
        elif capture.state is CaptureState.CAPTURING and self._done - capture.captured:
            missing = min(self._done - capture.captured)
            orders += self._drop_or_fail_incomplete(key, capture, missing, f"rank {missing} has ended without it")
        return orders

    def _compare_replicas_and_proceed(self, key: Key, capture: _Capture) -> List[Order]:
        """Every rank has it: whether they hold the same."""
        difference = replicas.find_difference(capture.replicas)
        capture.replicas.clear()
        if difference is not None:
            capture.state, capture.difference = CaptureState.COMPARING, difference
            return [Order(OrderKind.COMPARE, key, difference.holders, difference.ranks)]
        if capture.memory:
            capture.state = CaptureState.IN_MEMORY
            return self._persist_newest_in_memory_if_due()
        if self._has_memory_saves and not self._local and self._is_any_in_progress:
            # Written beside another one it would take the slot that the next captures for memory need.
            capture.state, self._is_storage_save_due = CaptureState.IN_MEMORY, True
            return []
        return [self._order_persist_or_storage_check(key, capture)]

    def _order_persist_or_storage_check(self, key: Key, capture: _Capture) -> Order:
        if capture.adopted:
            capture.state = CaptureState.CHECKING_STORAGE
        else:
            capture.state = CaptureState.PERSISTING
        return Order(OrderKind.CHECK_COMMITTED if capture.adopted else OrderKind.PERSIST, key)

    @property
    def _is_any_in_progress(self) -> bool:
        return any(capture.state.is_complete_and_in_progress for capture in self._captures.values())

    def set_hurried_and_persist_newest_in_memory(self) -> List[Order]:
        """The machine or the job is about to go: from now on nothing stays in memory alone for long."""
        self._hurried = True
        return self._persist_newest_in_memory_if_due()

    def _persist_newest_in_memory_if_due(self) -> List[Order]:
        """The newest capture that is held goes to storage, when there is a reason and nothing else is on the way."""
        in_memory = [key for key, capture in self._captures.items() if capture.state is CaptureState.IN_MEMORY]
        if not in_memory or not (
            self._hurried or self._is_storage_save_due or self._is_any_rank_done_and_none_capturing
        ):
            return []
        if self._is_any_in_progress and not self._local:
            return []
        self._is_storage_save_due = False
        newest = max(in_memory)
        return [self._order_persist_or_storage_check(newest, self._captures[newest])]

    @property
    def _is_any_rank_done_and_none_capturing(self) -> bool:
        """A rank makes no more captures, so no new one can be whole; and none is still becoming so."""
        return bool(self._done) and not any(
            capture.state is CaptureState.CAPTURING and capture.captured for capture in self._captures.values()
        )

    def refuse_capture_once_replica_tensors_reported(
        self, rank: int, key: Key, tensors: replicas.Tensors
    ) -> List[Order]:
        """The tensors of `rank`, which was asked for them; None when its trainer cannot be asked any more."""
        capture = self._captures.get(key)
        if capture is None or capture.state is not CaptureState.COMPARING or capture.difference is None:
            return []
        capture.tensors[rank] = tensors
        first, second = capture.difference.ranks
        if tensors is not None and not {first, second} <= set(capture.tensors):
            return []
        reason = replicas.explain_difference(
            capture.difference, capture.tensors.get(first), capture.tensors.get(second)
        )
        capture.tensors.clear()
        return self._end_capture(capture, CaptureState.REFUSED, key, reason)

    def storage_checked(self, key: Key, is_committed: bool) -> List[Order]:
        """Whether storage has this adopted capture already."""
        capture = self._captures.get(key)
        if capture is None or capture.state is not CaptureState.CHECKING_STORAGE:
            return []
        if is_committed:
            return self.committed(key)
        capture.state = CaptureState.PERSISTING
        return [Order(OrderKind.PERSIST, key)]

    def sealed(self, rank: int, key: Key) -> List[Order]:
        """`rank` has computed all digests of this capture."""
        capture = self._captures.setdefault(key, _Capture())
        capture.sealed.add(rank)
        if len(capture.sealed) == self.world and capture.state not in (
            CaptureState.COMPARING,
            CaptureState.REFUSED,
            CaptureState.DROPPED,
        ):
            return [Order(OrderKind.SEALED, key), *self._overtake_older_in_memory(key)]
        return []

    def _overtake_older_in_memory(self, key: Key) -> List[Order]:
        """All ranks have sealed this one: older ones that are held are of no use any more."""
        older = [
            other
            for other, capture in self._captures.items()
            if other < key and capture.state is CaptureState.IN_MEMORY
        ]
        for other in older:
            self._captures[other].state = CaptureState.OVERTAKEN
        return [Order(OrderKind.OVERTAKEN, other, f"seq {key[1]} has its place in memory") for other in sorted(older)]

    def skipped(self, rank: int, key: Key, reason: str) -> List[Order]:
        """`rank` will never have this capture. It may still be busy with an older one, so that one is left alone."""
        return self._drop(key, f"rank {rank}: {reason}")

    # --- storage ------------------------------------------------------------------------------------------------

    def local_written(self, rank: int, key: Key, is_present: bool) -> List[Order]:
        """`rank` has its shard on the node's disk, or (not `is_present`) could not write it and will upload from
        memory."""
        capture = self._captures.get(key)
        if capture is None or capture.state is not CaptureState.PERSISTING or not self._local:
            return []
        capture.local[rank] = is_present
        if len(capture.local) < self.world:
            return []
        capture.state = CaptureState.WAITING
        if all(capture.local.values()):
            orders = [Order(OrderKind.LOCAL, key)]
        else:
            orders = []
        return orders + self._upload_newest_overtaking_older()

    def persisted(self, rank: int, key: Key, report: Any) -> List[Order]:
        """`rank` has its shard on storage."""
        capture = self._captures.get(key)
        if capture is None or capture.state != (CaptureState.UPLOADING if self._local else CaptureState.PERSISTING):
            return []
        capture.reports[rank] = report
        return self._commit_or_free_storage_when_all_wrote(key, capture)

    def _commit_or_free_storage_when_all_wrote(self, key: Key, capture: _Capture) -> List[Order]:
        """One more rank has written its shard, or found no room for it."""
        if len(capture.reports) + len(capture.no_room) < self.world:
            return []
        if capture.no_room:
            if self._local:
                capture.retry = OrderKind.UPLOAD
            else:
                capture.retry = OrderKind.PERSIST
            return self._order_freeing_of_storage(key, capture)
        capture.state = CaptureState.COMMITTING
        return [Order(OrderKind.COMMIT, key)]

    def _order_freeing_of_storage(self, key: Key, capture: _Capture) -> List[Order]:
        capture.state = CaptureState.CLEARING
        return [Order(OrderKind.CLEAR, key)]

    def failed(self, rank: int, key: Key, reason: str, *, is_storage_full: bool = False) -> List[Order]:
        """`rank` could not write its shard (or rank 0 the manifest); `is_storage_full`: for want of room."""
        capture = self._captures.get(key)
        if not is_storage_full or capture is None:
            return self._fail(key, f"rank {rank}: {reason}")
        if capture.state is CaptureState.COMMITTING:
            capture.no_room[rank], capture.retry = reason, OrderKind.COMMIT
            return self._order_freeing_of_storage(key, capture)
        if capture.state is (CaptureState.UPLOADING if self._local else CaptureState.PERSISTING):
            capture.no_room[rank] = reason
            return self._commit_or_free_storage_when_all_wrote(key, capture)
        return self._fail(key, f"rank {rank}: {reason}")

    def storage_freeing_ended(self, key: Key, *, freed: bool, reason: str) -> List[Order]:
        """Something was given up for it, or nothing could be, and why."""
        capture = self._captures.get(key)
        if capture is None or capture.state is not CaptureState.CLEARING:
            return []
        rank = min(capture.no_room)
        failure = capture.no_room[rank]
        capture.no_room.clear()
        if not freed:
            return self._fail(key, f"rank {rank}: {failure}; {reason}")
        if capture.retry is OrderKind.COMMIT:
            capture.state = CaptureState.COMMITTING
        else:
            if self._local:
                capture.state = CaptureState.UPLOADING
            else:
                capture.state = CaptureState.PERSISTING
            capture.reports.clear()
        return [Order(capture.retry, key)]

    def committed(self, key: Key) -> List[Order]:
        """The manifest is on storage."""
        self._captures[key].state = CaptureState.COMMITTED
        self._captures[key].reports.clear()
        return [
            Order(OrderKind.COMMITTED, key),
            *self._upload_newest_overtaking_older(),
            *self._persist_newest_in_memory_if_due(),
            *self._shut_down_when_done(),
        ]

    def _upload_newest_overtaking_older(self) -> List[Order]:
        """The next one for the slow tier: the newest; what is older than it is not worth its time any more."""
        if any(
            capture.state in (CaptureState.UPLOADING, CaptureState.COMMITTING, CaptureState.CLEARING)
            for capture in self._captures.values()
        ):
            return []
        waiting = sorted(key for key, capture in self._captures.items() if capture.state is CaptureState.WAITING)
        if not waiting:
            return []
        newest = waiting.pop()
        self._captures[newest].state = CaptureState.UPLOADING
        orders = [Order(OrderKind.UPLOAD, newest)]
        for key in waiting:
            self._captures[key].state = CaptureState.OVERTAKEN
            orders.append(Order(OrderKind.OVERTAKEN, key, f"seq {newest[1]} goes to storage in its place"))
        return orders

    # --- ends ---------------------------------------------------------------------------------------------------

    def rank_done(self, rank: int, reason: str) -> List[Order]:
        """`rank` will make no more captures: its trainer ended, or its agent is lost."""
        self._done.add(rank)
        orders: List[Order] = []
        for key, capture in sorted(self._captures.items()):
            if capture.state is CaptureState.CAPTURING and rank not in capture.captured:
                orders += self._drop_or_fail_incomplete(key, capture, rank, f"rank {rank}: {reason}")
        return orders + self._persist_newest_in_memory_if_due() + self._shut_down_when_done()

    def forget_all_unfinished_captures(self, replaced_rank: int) -> None:
        """Forget all captures that are in progress, as another agent has taken the place of that of `replaced_rank`.

        Every agent reports once more what it holds, as of an earlier start. A commit that has begun needs nobody
        any more and stays. Ranks that were done report so again after that: until then they are not missing what
        they have not reported yet.
        """
        self._lost.discard(replaced_rank)
        self._done = set(self._lost)
        retained = {
            key: capture
            for key, capture in self._captures.items()
            if capture.state is CaptureState.COMMITTING or capture.state.is_end
        }
        self._captures.clear()
        self._captures.update(retained)

    def rank_lost(self, rank: int) -> List[Order]:
        """The agent of `rank` does not answer any more: what it has not written it never will."""
        self._lost.add(rank)
        orders: List[Order] = []
        for key, capture in sorted(self._captures.items()):
            if (
                capture.state is CaptureState.COMPARING
                and capture.difference is not None
                and rank in capture.difference.ranks
            ):
                orders += self.refuse_capture_once_replica_tensors_reported(rank, key, None)
            if (
                capture.state
                in (
                    CaptureState.IN_MEMORY,
                    CaptureState.CHECKING_STORAGE,
                    CaptureState.PERSISTING,
                    CaptureState.WAITING,
                    CaptureState.UPLOADING,
                    CaptureState.CLEARING,
                )
                and rank not in capture.reports
            ):
                orders += self._fail(key, f"rank {rank}: its agent was lost")
        return orders + self.rank_done(rank, "its agent was lost")

    def _drop_older_not_captured_by(self, rank: int, key: Key) -> List[Order]:
        """A rank that is at `key` will not come back for anything older that it has not captured."""
        orders: List[Order] = []
        for other, capture in sorted(self._captures.items()):
            if other < key and capture.state is CaptureState.CAPTURING and rank not in capture.captured:
                orders += self._drop(other, f"rank {rank} went on without it")
        return orders

    def _drop_or_fail_incomplete(self, key: Key, capture: _Capture, rank: int, reason: str) -> List[Order]:
        """It will not be whole, as `rank` does not have it. Of an earlier one, which all ranks may have sealed, a rank
        whose agent is gone may have its part in memory: there it stays for the next start."""
        if capture.adopted and rank in self._lost:
            return self._end_capture(capture, CaptureState.FAILED, key, reason)
        return self._drop(key, reason)

    def _drop(self, key: Key, reason: str) -> List[Order]:
        capture = self._captures.setdefault(key, _Capture())
        if capture.state in (CaptureState.DROPPED, CaptureState.REFUSED, CaptureState.COMMITTED):
            return []
        return self._end_capture(capture, CaptureState.DROPPED, key, reason)

    def _fail(self, key: Key, reason: str) -> List[Order]:
        capture = self._captures.get(key)
        if capture is None or capture.state is CaptureState.COMPARING:
            return []
        if not capture.state.is_complete_and_in_progress and capture.state is not CaptureState.IN_MEMORY:
            return []
        return self._end_capture(capture, CaptureState.FAILED, key, reason)

    def _end_capture(self, capture: _Capture, state: CaptureState, key: Key, reason: str) -> List[Order]:
        capture.state = state
        capture.reports.clear()
        return [
            Order(_END_ORDERS[state], key, reason),
            *self._upload_newest_overtaking_older(),
            *self._persist_newest_in_memory_if_due(),
            *self._shut_down_when_done(),
        ]

    def _forget_ended_beyond_limit(self) -> None:
        ended = sorted(key for key, capture in self._captures.items() if capture.state.is_end)
        for key in ended[:-_REMEMBERED]:
            del self._captures[key]

    def _shut_down_when_done(self) -> List[Order]:
        is_any_in_memory = any(capture.state is CaptureState.IN_MEMORY for capture in self._captures.values())
        if len(self._done) < self.world or is_any_in_memory or self._is_any_in_progress or self._is_shut_down:
            return []
        self._is_shut_down = True
        return [Order(OrderKind.SHUTDOWN, None)]
