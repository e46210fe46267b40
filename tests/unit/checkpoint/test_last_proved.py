"""Nothing that a checkpoint could be made of is deleted before a newer one that stays was read back."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, Dict, List, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository import read_back, retention
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec, lay_out
from hyperpod_kit.checkpoint.repository.policy import Best, CheckpointFacts, EverySteps, Latest, Policy
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.read_back import ReadBack, ReadBackOutcome
from hyperpod_kit.checkpoint.repository.records import catalog, proofs, tombstone
from hyperpod_kit.checkpoint.repository.records.leftovers import Leftover
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError
from tests.support.examples import examples
from tests.unit.checkpoint.small_checkpoint import SMALL_RUN, put_checkpoint

SHARD = layout.shard_file(0)


def left(store: MemoryStore) -> List[str]:
    return [entry.checkpoint_id for entry in catalog.list_checkpoints(store)]


def drop_a_write(store: MemoryStore, attempt: str, file: str = SHARD) -> None:
    """As a disk that said yes: the size is right, some bytes are zeros."""
    data = store._objects[f"{attempt}/{file}"]
    store._objects[f"{attempt}/{file}"] = data[:5] + bytes(20) + data[25:]


def whole(store: MemoryStore) -> List[str]:
    found = []
    for attempt in left(store):
        try:
            verify.verify_checkpoint(store, attempt)
        except (CheckpointError, OSError):
            continue
        found.append(attempt)
    return found


def test_four_bad_saves_do_not_take_the_good_one_away() -> None:
    store = MemoryStore("memory://lies")
    good = put_checkpoint(store, 1)
    for seq in range(2, 6):
        bad = put_checkpoint(store, seq)
        drop_a_write(store, bad)
        done = retention.enforce(store, Latest(3), SMALL_RUN)
        assert good in whole(store) and good not in done.deleted
    assert [name for name, _ in done.damaged] == [bad] and "read back" in (
        tombstone.read_damage_reason(store, bad) or ""
    )
    newest = put_checkpoint(store, 6)
    done = retention.enforce(store, Latest(3), SMALL_RUN)
    assert good in done.deleted and newest in proofs.proved_checkpoints(store) and whole(store)[0] == newest
    assert good not in proofs.proved_checkpoints(store)


def test_one_read_back_serves_until_its_checkpoint_is_to_go() -> None:
    store = MemoryStore("memory://sparing")
    reads: List[str] = []

    class Counting(read_back.Prover):
        def read_back_and_record(self, attempt: str) -> ReadBack:
            reads.append(attempt)
            return super().read_back_and_record(attempt)

    prover = Counting(store)
    names = []
    for seq in range(1, 41):
        names.append(put_checkpoint(store, seq))
        retention.enforce(store, Latest(4), SMALL_RUN, prover=prover)
        assert left(store) == names[::-1][:4]
    sampled = [name for name in names[:36] if retention._is_deletion_sampled_for_proof(name)]
    assert 36 / 4 <= len(reads) <= 36 / 4 + len(sampled)


def test_what_a_restore_has_proved_needs_no_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("memory://restored")
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    proofs.record_proof(store, names[1], "restore")
    items = retention.judge_all_checkpoints(store, run_id=SMALL_RUN.run_id)
    planned = retention.plan(items, Latest(2))
    assert retention.deletions_without_newer_proof(items, planned) == []
    store.delete(f"{names[1]}/{SHARD}")  # since then it has lost a file
    items = retention.judge_all_checkpoints(store, run_id=SMALL_RUN.run_id)
    assert [item.facts.checkpoint_id for item in retention.deletions_without_newer_proof(items, planned)] == [names[0]]


def test_a_read_back_that_is_given_up_deletes_nothing() -> None:
    store = MemoryStore("memory://hurry")
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    marked = put_checkpoint(store, 4)
    tombstone.write(store, marked, "flipped")
    put_checkpoint(store, 5)
    prover = read_back.Prover(store, may_continue=lambda size: False)
    done = retention.enforce(store, Latest(1), SMALL_RUN, prover=prover)
    assert done.deleted == (marked,), "of that nothing could be made"
    assert set(names) <= set(left(store)) and proofs.proved_checkpoints(store) == set()


def test_one_bad_read_condemns_nothing() -> None:
    class Shaky(MemoryStore):
        shaken = 1

        def open_read(self, name: str) -> Any:
            if name.endswith(".safetensors") and self.shaken:
                self.shaken -= 1
                kind: Any = type(super().open_read(name))
                return kind(bytes(len(self._objects[name])))
            return super().open_read(name)

    store = Shaky("memory://shaky")
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    found = read_back.read_back(store, names[1])
    assert found.outcome is ReadBackOutcome.DOUBTFUL and "only the second of" in found.reason
    Shaky.shaken = store.shaken = 1
    assert retention.enforce(store, Latest(1), SMALL_RUN).deleted == ()
    assert tombstone.read_damage_reason(store, names[1]) is None
    assert retention.enforce(store, Latest(1), SMALL_RUN).deleted == (names[0],)


def test_a_record_that_finds_no_room_is_left_later() -> None:
    class Full(MemoryStore):
        full = True

        def create(self, name: str, data: bytes) -> None:
            if self.full and name.startswith(layout.PROOFS):
                raise OSError(28, "No space left on device", name)
            super().create(name, data)

    store = Full("memory://full")
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    prover = read_back.Prover(store)
    assert retention.enforce(store, Latest(1), SMALL_RUN, prover=prover).deleted == (names[0],)
    assert proofs.proved_checkpoints(store) == set() and prover.proved_checkpoints() == {names[1]}
    store.full = False
    retention.enforce(store, Latest(1), SMALL_RUN, prover=prover)
    assert proofs.proved_checkpoints(store) == {names[1]}


@pytest.mark.parametrize("file", [SHARD, layout.EXTRA_FILE, layout.MANIFEST_FILE])
def test_every_file_is_read_back(tmp_path: Path, file: str) -> None:
    store = PosixStore(str(tmp_path))
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    path = tmp_path / names[1] / file
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert retention.enforce(store, Latest(1), SMALL_RUN).deleted == ()
    assert read_back.read_back(store, names[1]).outcome in (ReadBackOutcome.DAMAGED, ReadBackOutcome.DOUBTFUL)
    assert read_back.read_back(store, names[0]).outcome is ReadBackOutcome.PROVED


@pytest.mark.needs("disk")
def test_no_page_of_it_is_in_memory_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(64 * mmap.PAGESIZE))
    assert resident_pages(path) == 64
    PosixStore(str(tmp_path)).drop_cached_pages("shard")
    assert resident_pages(path) == 0


def resident_pages(path: Path) -> int:
    """How many pages of a file are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, *([ctypes.c_size_t] + [ctypes.c_int] * 3), ctypes.c_long)
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return sum(byte & 1 for byte in pages)


# --- what was never committed, or has lost its manifest -------------------------------------------------------------


def real_shards(store: MemoryStore, attempt: str, *, run_id: str, world: int = 2, digests: bytes = b"\1") -> None:
    """Shards as agents write them, of one tensor each; `digests` stands where the digests are."""
    for rank in range(world):
        made = lay_out(
            [TensorSpec(f"w{rank}", "F32", (300,))],
            rank=rank,
            world=world,
            run_id=run_id,
            plan="p",
            algorithm="blake2b",
        )
        head = made.header(1, 1, 1)
        body = head + bytes(made.data_end - len(head)) + digests * (made.size - made.data_end)
        store._objects[f"{attempt}/{layout.shard_file(rank)}"] = body


def test_shards_that_are_whole_stay_where_another_beginning_wrote_them() -> None:
    store = MemoryStore("memory://beginnings")
    lost = str(layout.CheckpointId(1, 29, 1, "abcd"))
    real_shards(store, lost, run_id=SMALL_RUN.run_id)
    newest = put_checkpoint(store, 2, epoch=2, line=2)
    done = retention.enforce(store, Latest(1), SMALL_RUN)
    assert done.deleted == () and lost in left(store)
    why = dict(retention.plan(retention.judge_all_checkpoints(store, run_id=SMALL_RUN.run_id), Latest(1)).keep)[lost]
    assert "earlier line" in why
    retention.delete_checkpoint_except_foreign_files(store, newest)
    put_checkpoint(store, 3, epoch=3, line=1)  # one that goes on from there
    assert lost in retention.enforce(store, Latest(1), SMALL_RUN).deleted


@pytest.mark.parametrize("what", ["a shard is missing", "a shard is short", "reserved and not filled", "no shards"])
def test_what_a_killed_save_has_left_is_cleaned_up(what: str) -> None:
    store = MemoryStore("memory://killed")
    dead = str(layout.CheckpointId(1, 29, 1, "abcd"))
    real_shards(store, dead, run_id=SMALL_RUN.run_id, digests=b"\0" if what.startswith("reserved") else b"\1")
    second = f"{dead}/{layout.shard_file(1)}"
    if what == "a shard is missing":
        del store._objects[second]
    elif what == "a shard is short":
        store._objects[second] = store._objects[second][:-1]
    elif what == "no shards":
        store._objects = {f"{dead}/{SHARD}": b"weights"}
    put_checkpoint(store, 2, epoch=2, line=2)
    assert retention.enforce(store, Latest(1), SMALL_RUN).deleted == (dead,)


def test_another_runs_shards_are_nobodys_to_delete_here() -> None:
    store = MemoryStore("memory://foreign")
    theirs = str(layout.CheckpointId(1, 29, 1, "abcd"))
    real_shards(store, theirs, run_id="f" * 32)
    del store._objects[f"{theirs}/{layout.shard_file(1)}"]
    put_checkpoint(store, 2, epoch=2, line=1)
    assert retention.enforce(store, Latest(1), SMALL_RUN).deleted == ()


def test_a_manifest_that_vanished_from_a_proved_one_is_no_leftover() -> None:
    store = MemoryStore("memory://vanished")
    names = [put_checkpoint(store, seq, epoch=seq, line=1) for seq in (1, 2)]
    proofs.record_proof(store, names[0], "restore")
    store.delete(f"{names[0]}/{layout.MANIFEST_FILE}")
    assert retention.enforce(store, Latest(1), SMALL_RUN).deleted == () and names[0] in left(store)


def test_checkpoints_of_another_beginning_stay_and_do_not_count() -> None:
    store = MemoryStore("memory://fresh")
    before = [put_checkpoint(store, seq, epoch=1, line=1) for seq in (1, 2)]
    after = [put_checkpoint(store, seq, epoch=2, line=2) for seq in (3, 4, 5)]
    assert retention.enforce(store, Latest(2), SMALL_RUN).deleted == (after[0],)
    assert left(store) == [after[2], after[1], before[1], before[0]]


# --- a save that has no room ----------------------------------------------------------------------------------------


def coming(seq: int) -> CheckpointFacts:
    return CheckpointFacts(str(layout.CheckpointId(seq, seq, 1, "abcd")), (1, seq, "abcd"), seq)


def test_for_a_save_without_room_the_oldest_goes_one_at_a_time() -> None:
    store = MemoryStore("memory://room")
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    gave_up = put_checkpoint(store, 4, committed=False)
    asked: Dict[str, Any] = {"save_lacking_room": coming(5), "abandoned": frozenset({gave_up})}
    assert retention.enforce(store, Latest(3), SMALL_RUN, **asked).deleted == (gave_up,)
    assert retention.enforce(store, Latest(3), SMALL_RUN, **asked).deleted == (names[0],)
    assert retention.enforce(store, Latest(3), SMALL_RUN, **asked).deleted == (), "two stay, and the third is coming"
    assert names[2] in proofs.proved_checkpoints(store)


def test_for_a_save_without_room_the_last_good_one_stays_and_the_bad_one_goes() -> None:
    store = MemoryStore("memory://bad")
    names = [put_checkpoint(store, seq) for seq in (1, 2)]
    drop_a_write(store, names[1])
    assert retention.enforce(store, Latest(2), SMALL_RUN, save_lacking_room=coming(3)).deleted == (names[1],)
    assert retention.enforce(store, Latest(2), SMALL_RUN, save_lacking_room=coming(3)).deleted == ()
    assert whole(store) == [names[0]]


STATE = st.sampled_from(
    [retention.VALID, retention.VALID, retention.DAMAGED, retention.UNCOMMITTED, retention.UNJUDGED]
)
ITEM = st.tuples(
    st.integers(1, 3),
    STATE,
    st.booleans(),
    st.booleans(),
    st.sampled_from(list(Leftover)),
    st.integers(0, 3),
    st.sampled_from(list(ReadBackOutcome)),
)
RULE = st.one_of(
    st.builds(Latest, st.integers(1, 4)),
    st.builds(EverySteps, st.integers(1, 9)),
    st.builds(lambda n: Latest(n) | Best("loss"), st.integers(1, 3)),
)


@examples(600)
@given(st.lists(ITEM, max_size=10), RULE, st.booleans())
def test_a_plan_never_lets_the_last_proved_one_go(made: List[Any], rule: Policy, in_need: bool) -> None:
    """Whatever lies there and whatever reading it back gives: what is deleted and is worth something is older than one
    that stays and is really whole."""
    items: List[retention.Item] = []
    truth: Dict[str, ReadBackOutcome] = {}
    for seq, (epoch, state, proved, marked, leftover, line, outcome) in enumerate(made, 1):
        name = layout.CheckpointId(seq, seq, epoch, "abcd")
        valid = state == retention.VALID
        items.append(
            retention.Item(
                CheckpointFacts(str(name), catalog.sort_key(name), seq, metrics={"loss": float(-seq % 4)}),
                state,
                proved=valid and proved and outcome is ReadBackOutcome.PROVED,
                marked=state == retention.DAMAGED and marked,
                line=min(line, epoch) if valid else 0,
                leftover=Leftover.PARTIAL if valid else leftover,
            )
        )
        truth[str(name)] = outcome
    items.sort(key=lambda item: item.facts.order, reverse=True)

    class Told(read_back.Prover):
        def __init__(self) -> None:
            self.asked: Set[str] = set()

        def proved_checkpoints(self) -> Set[str]:
            return set()

        def read_back_and_record(self, attempt: str) -> ReadBack:
            assert attempt not in self.asked, "read twice for one plan"
            self.asked.add(attempt)
            return ReadBack(truth[attempt], "told so")

    prover = Told()
    found = retention.prove_and_plan(items, prover, rule, save_lacking_room=coming(99) if in_need else None)
    going = {attempt for attempt, _ in found.planned.delete}
    staying = [item for item in items if item.facts.checkpoint_id not in going]
    assert {attempt for attempt, _ in found.planned.keep} == {item.facts.checkpoint_id for item in staying}
    good = [
        item.facts.order
        for item in staying
        if item.state == retention.VALID
        and (item.proved or item.facts.checkpoint_id in prover.asked)
        and truth[item.facts.checkpoint_id] is ReadBackOutcome.PROVED
    ]
    for item in found.items:
        if item.facts.checkpoint_id in going and item.is_valid_or_rebuildable:
            assert good and max(good) > item.facts.order
    valid = [item for item in found.items if item.state == retention.VALID]
    if valid:
        assert valid[0].facts.checkpoint_id not in going
