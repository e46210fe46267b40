"""Discovery: what is newest, on a root with thousands of attempts, and whatever the hints say."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.checkpoint.repository import commit, selection
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.records import catalog, identity, latest, tombstone
from hyperpod_kit.checkpoint.repository.store.base import Capabilities
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError, NoCheckpoint, NoValidCheckpoint
from tests.support.examples import examples
from tests.unit.checkpoint.small_checkpoint import put_checkpoint


class Remote(MemoryStore):
    """Listings are dear and come in pages of 1000, as with S3; `pages` counts them."""

    pages = 0

    @property
    def capabilities(self) -> Capabilities:
        return super().capabilities._replace(local=False)

    def list(self, prefix: str = "", *, after: str = "", until: str = "") -> List[str]:
        names = super().list(prefix, after=after)
        if until:
            stop = next((at for at, name in enumerate(names) if name > until), len(names))
            self.pages += stop // 1000 + 1
            return names[:stop]
        self.pages += max(1, -(-len(names) // 1000))
        return names


def start(store: Any, epoch: int, first_seq: Optional[int]) -> None:
    body: Dict[str, Any] = {"format": layout.RUN_FORMAT, "epoch": epoch}
    store.create(
        layout.epoch_file(epoch),
        manifest.seal_json({**body, "first_seq": first_seq} if first_seq is not None else body),
    )


@pytest.fixture(scope="module")
def crowd() -> Remote:
    """10,000 attempts of 20 starts, LATEST a few saves behind, one more start since."""
    store = Remote("memory://crowd")
    for epoch in range(1, 21):
        start(store, epoch, (epoch - 1) * 500 + 1)
        for seq in range((epoch - 1) * 500 + 1, epoch * 500 + 1):
            name = f"{layout.CheckpointId(seq, seq, epoch, 'abcd')}/{layout.MANIFEST_FILE}"
            store._objects[name] = b"not read"
    start(store, 21, 10_001)
    put_checkpoint(store, 10_001, epoch=21)
    latest.try_write(store, str(layout.CheckpointId(9990, 9990, 20, "abcd")))
    store.create("pins/x.json", b"")
    return store


def test_the_newest_of_ten_thousand_takes_few_listings(crowd: Remote) -> None:
    crowd.pages = 0
    assert selection.newest_valid(crowd).seq == 10_001
    assert crowd.pages <= 3
    crowd.pages = 0
    assert catalog.highest_epoch_and_seq(crowd) == (21, 10_001)
    assert crowd.pages <= 3


def test_all_are_there_when_they_are_asked_for(crowd: Remote) -> None:
    found = [entry.name.seq for entry in selection.iter_committed_not_excluded_newest_first(crowd)]
    assert found == list(range(10_001, 0, -1))


@pytest.mark.parametrize("spoil", ["torn", "gone", "elsewhere", "epoch", "no seq"])
def test_a_hint_in_doubt_costs_listings_and_nothing_else(spoil: str) -> None:
    store = Remote("memory://doubt")
    for seq in range(1, 8):
        put_checkpoint(store, seq)
    newest = put_checkpoint(store, 2, epoch=2)
    latest.try_write(store, str(layout.CheckpointId(3, 3, 1, "abcd")))
    if spoil == "torn":
        store.overwrite_non_atomically(layout.LATEST_FILE, store.read(layout.LATEST_FILE)[:-3])
    elif spoil == "gone":
        store.delete(layout.LATEST_FILE)
    elif spoil == "elsewhere":
        latest.try_write(store, str(layout.CheckpointId(3, 3, 1, "beef")))
    elif spoil == "epoch":
        store.create(layout.epoch_file(2), b"torn")
    else:
        start(store, 2, None)
    assert next(catalog.iter_checkpoints_newest_first(store)).checkpoint_id == newest
    assert [entry.name.seq for entry in catalog.iter_checkpoints_newest_first(store)] == [2, 7, 6, 5, 4, 3, 2, 1]


def test_long_numbers_are_not_sought_by_name() -> None:
    store = Remote("memory://long")
    for seq in (999_998, 999_999, 1_000_000, 1_000_001):
        put_checkpoint(store, seq)
    latest.try_write(store, str(layout.CheckpointId(999_998, 999_998, 1, "abcd")))
    assert [entry.name.seq for entry in catalog.iter_checkpoints_newest_first(store)] == [
        1_000_001,
        1_000_000,
        999_999,
        999_998,
    ]
    assert catalog.highest_epoch_and_seq(store) == (1, 1_000_001)


@examples(150)
@given(st.randoms(use_true_random=False))
def test_the_short_way_finds_what_the_long_way_finds(dice: random.Random) -> None:
    """Starts, zombies of older starts, deletions, a hint of any age."""
    store = Remote("memory://random")
    made: List[layout.CheckpointId] = []
    for epoch in range(1, dice.randrange(2, 6)):
        seq = max([0, *(name.seq for name in made)]) if dice.random() < 0.8 else dice.randrange(4)
        start(store, epoch, seq + 1)
        for _ in range(dice.randrange(4)):
            seq += 1
            zombie = dice.randrange(1, epoch + 1) if dice.random() < 0.2 else epoch
            name = layout.CheckpointId(seq, dice.randrange(50), zombie, f"{dice.randrange(16**4):04x}")
            if zombie == epoch or seq > 0:
                store._objects[f"{name}/{layout.MANIFEST_FILE}"] = b""
                made.append(name)
    if made:
        latest.try_write(store, str(dice.choice(made)))
    for name in made:
        if dice.random() < 0.2:
            store.delete(f"{name}/{layout.MANIFEST_FILE}")
    short = list(catalog.iter_checkpoints_newest_first(store))
    assert short == catalog.list_checkpoints(store)
    # The listing of a directory that is gone is no proof that its numbers were never used.
    assert catalog.highest_epoch_and_seq(store)[1] >= max([0, *(entry.name.seq for entry in short)])


def test_ten_thousand_local_ones(tmp_path: Any) -> None:
    store = PosixStore(str(tmp_path))
    for seq in range(1, 10_001):
        (tmp_path / str(layout.CheckpointId(seq, seq, 1, "abcd"))).mkdir()
    newest = put_checkpoint(store, 10_001)
    assert selection.newest_valid(store).checkpoint_id == newest


def test_what_is_marked_is_passed_over_unless_nothing_else_is_valid() -> None:
    store = MemoryStore("memory://marked")
    old, new = put_checkpoint(store, 1), put_checkpoint(store, 2)
    tombstone.write(store, new, "shard-00000: expected a, found b")
    tombstone.write(store, new, "another reason comes too late")
    found = selection.newest_valid(store)
    assert found.checkpoint_id == old
    assert found.rejected == ((new, "marked as damaged: shard-00000: expected a, found b"),)
    store.overwrite_non_atomically(f"{old}/{layout.MANIFEST_FILE}", b"torn")
    assert selection.newest_valid(store).checkpoint_id == new
    store.overwrite_non_atomically(f"{new}/{layout.EXTRA_FILE}", b"damaged")
    with pytest.raises(NoValidCheckpoint) as caught:
        selection.newest_valid(store)
    assert [name for name, _ in caught.value.reasons] == [new, old]


def test_a_tombstone_that_is_damaged_says_nothing() -> None:
    store = MemoryStore("memory://tombstones")
    attempt, other = put_checkpoint(store, 1), put_checkpoint(store, 2)
    tombstone.write(store, attempt, "why")
    data = store.read(layout.tombstone_file(attempt))
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            store.overwrite_non_atomically(layout.tombstone_file(attempt), bytes(damaged))
            assert tombstone.read_damage_reason(store, attempt) is None
    store.overwrite_non_atomically(layout.tombstone_file(other), data)  # copied to a sound one
    assert selection.newest_valid(store).checkpoint_id == other
    assert [layout.parse_tombstone(name) for name in (f"{other}.BAD", "x.BAD", other)] == [other, None, None]


def test_only_proven_damage_earns_a_tombstone(tmp_path: Any) -> None:
    store = PosixStore(str(tmp_path))
    attempt = put_checkpoint(store, 1)
    path = tmp_path / attempt / layout.shard_file(0)
    data = path.read_bytes()
    from hyperpod_kit.checkpoint.repository.read import verify

    path.write_bytes(b"x" + data[1:])
    with pytest.raises(CheckpointError) as caught:
        verify.verify_checkpoint(store, attempt)
    assert tombstone.proves_damage(caught.value)
    path.unlink()
    with pytest.raises(OSError) as missing:
        verify.verify_checkpoint(store, attempt)
    assert not tombstone.proves_damage(missing.value)


def test_a_commit_leaves_the_hint_and_one_that_cannot_be_written_is_no_failure() -> None:
    store = MemoryStore("memory://hint")
    assert latest.read(store) is None
    attempt = put_checkpoint(store, 1)
    assert str(latest.read(store)) == attempt

    class Full(MemoryStore):
        def overwrite_non_atomically(self, name: str, data: bytes) -> None:
            raise OSError(28, "No space left on device", name)

    full = Full("memory://full")
    assert put_checkpoint(full, 1) == selection.newest_valid(full).checkpoint_id and latest.read(full) is None


def test_a_start_says_where_it_begins(tmp_path: Any) -> None:
    store = PosixStore(str(tmp_path))
    mine = identity.ensure_run_identity(store)
    epoch = commit.claim_epoch(store, mine, above=0, job={}, first_seq=7)
    assert manifest.parse_sealed_json(store.read(layout.epoch_file(epoch)), "epoch")["first_seq"] == 7
    with pytest.raises(NoCheckpoint):
        selection.newest_valid(store)


def test_the_package_says_what_is_there_without_torch(tmp_path: Path) -> None:
    store = PosixStore(str(tmp_path))
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    (tmp_path / names[2] / layout.shard_file(0)).unlink()
    (tmp_path / names[1] / layout.shard_file(0)).write_bytes(b"x")
    program = (
        "import sys; from hyperpod_kit.checkpoint import list_checkpoints, newest_complete, newest_valid\n"
        "root = sys.argv[1]\n"
        "print([entry.name.step for entry in list_checkpoints(root)])\n"
        "print(newest_complete(root).step, newest_valid(root).step)\n"
        "assert 'torch' not in sys.modules"
    )
    said = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True)
    assert said.stdout == "[3, 2, 1]\n2 1\n"
