from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository import retention, selection
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.policy import Best, EverySteps, Latest, Pinned, Policy
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog, identity, lease, pins, proofs, tombstone
from hyperpod_kit.checkpoint.repository.store.base import SMALL, Capabilities, Unsupported
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError, NoCheckpoint, NoValidCheckpoint
from tests.support.examples import examples
from tests.support.wait import until
from tests.unit.checkpoint.small_checkpoint import SMALL_RUN, put_checkpoint


def store_of() -> MemoryStore:
    return MemoryStore("memory://retention")


def left(store: MemoryStore) -> List[str]:
    return [entry.checkpoint_id for entry in catalog.list_checkpoints(store)]


def test_keeps_what_the_policy_says_and_removes_the_rest_whole() -> None:
    store = store_of()
    names = [put_checkpoint(store, seq, step=seq * 10, metrics={"loss": float(seq)}) for seq in range(1, 8)]
    done = retention.enforce(store, Latest(2) | Best("loss") | EverySteps(30), SMALL_RUN)
    assert left(store) == [names[6], names[5], names[2], names[0]]
    assert done.deleted == (names[1], names[3], names[4]) and done.remaining == ()
    assert not [name for name in store._objects if name.startswith((names[1], names[3], names[4]))]
    assert selection.newest_valid(store).checkpoint_id == names[6]


def test_no_shard_is_opened_where_a_newer_one_was_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PosixStore(str(tmp_path))
    names = [put_checkpoint(store, seq) for seq in range(1, 4)]

    def refuse(self: PosixStore, name: str) -> None:
        raise AssertionError(f"{name} was opened")

    proofs.record_proof(store, names[2], "a test")
    monkeypatch.setattr(PosixStore, "open_read", refuse)
    assert retention.enforce(store, Latest(1), SMALL_RUN).deleted == (names[0], names[1])


@pytest.mark.parametrize("damage", ["longer", "missing", "a link", "a directory"])
def test_what_is_not_whole_is_not_taken_for_the_newest(tmp_path: Path, damage: str) -> None:
    store = PosixStore(str(tmp_path))
    names = [put_checkpoint(store, seq) for seq in range(1, 4)]
    shard = tmp_path / names[2] / layout.shard_file(0)
    data = shard.read_bytes()
    shard.unlink()
    if damage == "longer":
        shard.write_bytes(data + b".")
    elif damage == "a link":
        (tmp_path / "elsewhere").write_bytes(data)
        shard.symlink_to(tmp_path / "elsewhere")
    elif damage == "a directory":
        shard.mkdir()
    assert retention.enforce(store, Latest(1), SMALL_RUN).deleted == (names[0],)


def test_pins_hold_against_every_policy_and_can_be_taken_back() -> None:
    store = store_of()
    names = [put_checkpoint(store, seq) for seq in range(1, 4)]
    pins.pin(store, names[0], "paper")
    pins.pin(store, names[0])
    retention.enforce(store, Latest(1), SMALL_RUN)
    assert left(store) == [names[2], names[0]] and pins.pinned_checkpoints(store) == {names[0]}
    pins.unpin(store, names[0])
    retention.enforce(store, Latest(1) | Pinned(), SMALL_RUN)
    assert left(store) == [names[2]]
    for wrong in (names[0], "../x", "seq-000009.step-0000000009.e1-abcd"):
        with pytest.raises(CheckpointError, match="not a committed"):
            pins.pin(store, wrong)
        with pytest.raises(CheckpointError, match="not pinned"):
            pins.unpin(store, wrong)


def test_what_is_being_read_stays_until_the_lease_is_over() -> None:
    store = store_of()
    names = [put_checkpoint(store, seq) for seq in range(1, 4)]
    held = lease.Lease(store, names[0], 60)
    held.renew()
    assert len(store.list(layout.LEASES)) == 1
    with lease.Lease(store, names[1], 60):
        retention.enforce(store, Latest(1), SMALL_RUN)
        assert left(store) == names[::-1]
    retention.enforce(store, Latest(1), SMALL_RUN)
    assert left(store) == [names[2], names[0]]
    late = lease.Moment(time.time(), time.monotonic() + 60 + lease.GRACE + 2)
    assert lease.leased_checkpoints(store) == {names[0]} and lease.leased_checkpoints(store, now=late) == set()
    lease.remove_expired(store, now=late)
    assert store.list(layout.LEASES) == []
    retention.enforce(store, Latest(1), SMALL_RUN)
    assert left(store) == [names[2]]


@pytest.mark.parametrize("off", [-3600.0, -300.0, 0.0, 300.0, 3600.0])
def test_a_lease_lasts_as_long_by_whatever_clocks(monkeypatch: pytest.MonkeyPatch, off: float) -> None:
    """`off`: seconds by which the reader's clock is ahead; and who deletes has its own set, hours on or back, while it
    is read."""
    store, seen = store_of(), lease.LeaseWatch()
    name = put_checkpoint(store, 1)
    wall = time.time()

    def held(passed: float, set_by: float = 0.0) -> bool:
        now = lease.Moment(wall + passed + set_by, 1000.0 + passed)
        return lease.leased_checkpoints(store, now=now, watch=seen) == {name}

    def reader_renews(reading: lease.Lease, passed: float) -> None:
        monkeypatch.setattr(time, "time", lambda: wall + passed + off)
        reading.renew()

    reading = lease.Lease(store, name, 900)
    for passed in range(0, 7200, 300):
        reader_renews(reading, passed)
        assert held(passed)
        for later in (10.0, 290.0):
            for set_by in (0.0, 7200.0, -7200.0):
                assert held(passed + later, set_by), (passed, later, set_by)
    # It is killed: its last lease ends, by the clock of who has seen it.
    ended = 6900 + 900 + max(0.0, off) + lease.GRACE + 2
    assert not held(ended) and not held(ended, -7200.0)
    lease.remove_expired(store, now=lease.Moment(wall + ended, 1000.0 + ended), watch=seen)
    assert store.list(layout.LEASES) == []


def test_a_lease_of_long_ago_counts_for_nobody_and_one_of_just_now_for_everybody() -> None:
    """A program that looks once does not know how far the clocks of two machines differ."""
    store = store_of()
    name = put_checkpoint(store, 1)
    lease.Lease(store, name, 60)
    for hours, reads in ((1, True), (20, True), (30, False)):
        now = lease.Moment(time.time() + hours * 3600, 5.0)
        assert lease.leased_checkpoints(store, now=now, watch=lease.LeaseWatch()) == ({name} if reads else set())


def test_a_lease_is_renewed_while_it_is_kept(tmp_path: Path) -> None:
    store = PosixStore(str(tmp_path))
    name = put_checkpoint(store, 1)
    reading = lease.acquire_lease_if_writable(store, name, 0.3)
    assert reading is not None
    (first,) = store.list(layout.LEASES)
    until(lambda: store.list(layout.LEASES)[:1] not in ([], [first]), what="a second lease in the first one's place")
    reading.release()
    assert store.list(layout.LEASES) == []


def test_a_lease_where_nothing_can_be_written_is_none(tmp_path: Path) -> None:
    class ReadOnly(MemoryStore):
        def create(self, name: str, data: bytes) -> None:
            raise PermissionError(13, "read-only", name)

    assert lease.acquire_lease_if_writable(ReadOnly("memory://ro"), "seq-000001.step-0000000001.e1-abcd", 5) is None


def test_a_lease_that_begins_after_the_plan_counts() -> None:
    store = store_of()
    names = [put_checkpoint(store, seq) for seq in range(1, 4)]
    planned = retention.plan(retention.judge_all_checkpoints(store), Latest(1))
    lease.Lease(store, names[0], 60)
    pins.pin(store, names[1])
    done = retention.delete_planned(store, planned, SMALL_RUN)
    assert done.deleted == () and {name for name, _ in done.remaining} == {names[0], names[1]}


def test_only_attempts_that_nobody_can_finish_any_more_are_collected() -> None:
    store = store_of()
    orphan = put_checkpoint(store, 1, epoch=1, committed=False)
    put_checkpoint(store, 2, epoch=1)
    late = put_checkpoint(store, 3, epoch=2, committed=False)
    newest = put_checkpoint(store, 4, epoch=2)
    coming = put_checkpoint(store, 5, epoch=2, committed=False)
    retention.enforce(store, Latest(1), SMALL_RUN)
    assert left(store) == [coming, newest, late] and orphan not in left(store)


def test_without_a_valid_one_nothing_is_deleted() -> None:
    store = store_of()
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    for name in names:
        store.overwrite_non_atomically(f"{name}/{layout.MANIFEST_FILE}", b"torn")
    put_checkpoint(store, 1, epoch=1, committed=False, nonce="beef")
    assert retention.enforce(store, Latest(1), SMALL_RUN).deleted == () and len(left(store)) == 3


def test_damaged_ones_do_not_count_and_go_when_a_newer_one_is_valid() -> None:
    store = store_of()
    good, torn, marked = (put_checkpoint(store, seq) for seq in (1, 2, 3))
    store.overwrite_non_atomically(f"{torn}/{layout.MANIFEST_FILE}", b"torn")
    tombstone.write(store, marked, "flipped")
    retention.enforce(store, Latest(1), SMALL_RUN)
    assert left(store) == [marked, torn, good]  # newer than the newest valid one: evidence
    newest = put_checkpoint(store, 4)
    retention.enforce(store, Latest(2), SMALL_RUN)
    assert left(store) == [newest, good] and not store.exists(layout.tombstone_file(marked))


def test_what_cannot_be_judged_stays() -> None:
    class Flaky(MemoryStore):
        def read(self, name: str, most: int = SMALL) -> bytes:
            if name.startswith("seq-000001"):
                raise OSError(5, "Input/output error", name)
            return super().read(name, most)

    store = Flaky("memory://flaky")
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    copied = str(layout.CheckpointId(2, 2, 1, "beef"))
    store.create(f"{copied}/{layout.MANIFEST_FILE}", store.read(f"{names[2]}/{layout.MANIFEST_FILE}"))
    assert dict(retention.plan(retention.judge_all_checkpoints(store), Latest(1)).keep)[names[0]].startswith(
        "cannot be judged"
    )
    retention.enforce(store, Latest(1), SMALL_RUN)
    assert left(store) == [names[2], copied, names[0]]


def test_the_newest_valid_one_is_one_whose_files_are_there() -> None:
    store = store_of()
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    store.delete(f"{names[2]}/{layout.shard_file(0)}")
    retention.enforce(store, Latest(1), SMALL_RUN)
    assert left(store) == [names[2], names[1]]
    assert selection.newest_valid(store).checkpoint_id == names[1]


def test_a_stricter_judge_may_be_asked() -> None:
    store = store_of()
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    items = retention.judge_all_checkpoints(store, is_complete=lambda _, attempt: attempt == names[0])
    assert retention.plan(items, Latest(1)).delete == ()


def test_a_storage_that_does_not_delete_is_told_once() -> None:
    class Keeps(MemoryStore):
        tries = 0

        @property
        def capabilities(self) -> Capabilities:
            return super().capabilities._replace(delete=not self.tries)

        def delete(self, name: str) -> None:
            self.tries += 1
            raise Unsupported("no deletes here")

    store = Keeps("memory://keeps")
    names = [put_checkpoint(store, seq) for seq in range(1, 5)]
    done = retention.enforce(store, Latest(1), SMALL_RUN)
    assert store.tries == 1 and done.deleted == ()
    assert dict(done.remaining) == dict.fromkeys(names[:3], "no deletes here")


def test_an_error_at_one_does_not_keep_the_others() -> None:
    class Stuck(MemoryStore):
        def delete(self, name: str) -> None:
            if name.startswith("seq-000002"):
                raise OSError(5, "Input/output error", name)
            super().delete(name)

    store = Stuck("memory://stuck")
    names = [put_checkpoint(store, seq) for seq in range(1, 5)]
    done = retention.enforce(store, Latest(1), SMALL_RUN)
    assert done.deleted == (names[0], names[2]) and done.remaining[0][0] == names[1]


PROGRAM = """
import sys
from hyperpod_kit.checkpoint.repository import retention
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.policy import Latest
from hyperpod_kit.checkpoint.repository.store.open import open_store
retention.enforce(open_store(sys.argv[1]), Latest(1), identity.RunIdentity('small', '0' * 32))
"""


@pytest.mark.parametrize(
    "place",
    [
        "retention.before",
        "retention.manifest_deleted",
        "retention.manifest_deleted@2",
        "store.file_deleted",
        "store.file_deleted@3",
        "retention.files_deleted",
    ],
)
def test_killed_in_the_middle_nothing_half_deleted_is_a_checkpoint(tmp_path: Path, place: str) -> None:
    store = PosixStore(str(tmp_path))
    names = [put_checkpoint(store, seq, epoch=seq) for seq in range(1, 5)]
    end = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        timeout=20,
        env={**os.environ, "HPK_FAILPOINT": place, "PYTHONPATH": os.getcwd()},
    )
    assert end.returncode == -signal.SIGKILL
    for entry in catalog.list_checkpoints(store):
        if entry.committed:
            verify.verify_checkpoint(store, entry.checkpoint_id)
    assert selection.newest_valid(store).checkpoint_id == names[3]
    retention.enforce(store, Latest(1), SMALL_RUN)
    assert sorted(os.listdir(tmp_path)) == [layout.LATEST_FILE, layout.RUN_FILE, layout.PROOFS, names[3]]


STATES = st.sampled_from(["good", "torn", "marked", "short", "uncommitted"])
ATTEMPT = st.tuples(st.integers(1, 3), st.integers(0, 30), STATES, st.booleans(), st.booleans())
RULE = st.one_of(
    st.builds(Latest, st.integers(1, 3)),
    st.builds(EverySteps, st.integers(1, 20)),
    st.just(Pinned()),
    st.builds(Best, st.just("loss")),
    st.builds(lambda n: Latest(n) & Pinned(), st.integers(1, 3)),
)


@examples(200)
@given(st.lists(ATTEMPT, max_size=9), RULE, st.integers(0, 60))
def test_the_newest_valid_one_survives_any_policy_and_any_crash(
    made: List[tuple[int, int, str, bool, bool]], rule: Policy, stop: int
) -> None:
    """`stop`: the process dies at that deletion. What is pinned, leased, or newest valid is not touched."""

    class Dies(MemoryStore):
        deletions = 0

        def delete(self, name: str) -> None:
            Dies.deletions += 1
            if Dies.deletions > stop:
                raise KeyboardInterrupt
            super().delete(name)

    store = Dies("memory://dies")
    identity.write_run_file_unless_valid(store, SMALL_RUN)
    safe: Set[str] = set()
    for seq, (epoch, step, state, pinned, leased) in enumerate(made, 1):
        name = put_checkpoint(
            store, seq, epoch=epoch, step=step, committed=state != "uncommitted", metrics={"loss": float(step)}
        )
        if state == "torn":
            store.overwrite_non_atomically(
                f"{name}/{layout.MANIFEST_FILE}", store.read(f"{name}/{layout.MANIFEST_FILE}")[:-5]
            )
        elif state == "marked":
            store.overwrite_non_atomically(f"{name}/{layout.EXTRA_FILE}", b"[]")
            tombstone.write(store, name, "flipped")
        elif state == "short":
            store._objects.pop(f"{name}/{layout.shard_file(0)}")
        if pinned and state != "uncommitted":
            pins.pin(store, name)
            safe.add(name)
        if leased:
            lease.Lease(store, name, 60)
            safe.add(name)
    before = outcome(store)
    content: Dict[str, bytes] = dict(store._objects)
    with contextlib.suppress(KeyboardInterrupt):
        retention.enforce(store, rule, SMALL_RUN)
    assert outcome(store) == before or not before.startswith("seq-")
    if before.startswith("seq-"):
        safe.add(before)
    gone = {name.partition("/")[0] for name in content if name not in store._objects}
    assert not gone & safe
    for entry in catalog.list_checkpoints(store):
        if entry.committed:  # whatever still has a manifest has all that it had
            assert all(name in store._objects for name in content if name.startswith(entry.checkpoint_id + "/"))


def outcome(store: MemoryStore) -> str:
    try:
        return selection.newest_valid(store).checkpoint_id
    except (NoCheckpoint, NoValidCheckpoint) as err:
        return type(err).__name__
