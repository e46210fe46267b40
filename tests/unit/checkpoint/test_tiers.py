"""What every tier besides the root must hold: one suite for all of them, as for the stores."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint import tiers
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.tiers.base import TIERS, HeldShard, Tier
from hyperpod_kit.errors import CheckpointError, DigestMismatch
from tests.unit.checkpoint.test_restore_tiers import Site

FLIPPED_BYTE = 20_000
"""Inside of a tensor of the site's model."""


def slots_of_this_user() -> list[shm_slots.Slot]:
    folder = shm_paths.shared_memory_root()
    return list(shm_slots.attach_each_mappable(folder, shm_slots.own_slot_names(folder)))


class Ground:
    """A run whose newest checkpoint is on every tier."""

    def __init__(self, site: Site, shm: Path) -> None:
        self.site, self.shm = site, shm
        self.tiers = {
            tier.name: tier for tier in tiers.of_rank(site.run_id, 0, slots=slots_of_this_user(), local=str(site.local))
        }

    def folder(self, name: str) -> Path:
        return {"memory": self.shm, "local": self.site.local}[name]

    def newest_copy(self, tier: Tier) -> HeldShard:
        [shard_copy] = [each for each in tier.list_copies() if each.checkpoint_id == self.site.attempt]
        return shard_copy

    def damage_tensors(self, name: str) -> None:
        pattern = {"memory": "*.img", "local": "shard-*"}[name]
        for path in self.folder(name).rglob(pattern):
            content = bytearray(path.read_bytes())
            content[FLIPPED_BYTE] ^= 1
            path.write_bytes(content)


@pytest.fixture
def ground(shm: Path, tmp_path: Path) -> Ground:
    return Ground(Site(tmp_path), shm)


each_tier = pytest.mark.parametrize("name", [name for name in TIERS if name != "storage"])


def test_every_tier_is_in_this_suite(ground: Ground) -> None:
    modules = {path.stem for path in Path(inspect.getfile(tiers)).parent.glob("*.py")} - {"__init__", "base"}
    assert len(ground.tiers) == len(modules) == len(TIERS) - 1, "a module for each tier, and a name for each"
    assert [name for name in TIERS if name in ground.tiers] == list(ground.tiers), "the cheapest first"


@each_tier
def test_a_copy_says_what_proves_it(ground: Ground, name: str) -> None:
    shard_copy = ground.newest_copy(ground.tiers[name])
    record = verify.read_manifest(str(ground.site.root), ground.site.attempt).shards[0]
    assert (shard_copy.tier, shard_copy.world) == (name, 1)
    assert (shard_copy.root, shard_copy.size) == (record.root, record.size)


@each_tier
def test_all_of_a_shard_and_its_tree_are_read_and_proved(ground: Ground, name: str) -> None:
    tier = ground.tiers[name]
    shard_copy = ground.newest_copy(tier)
    assert "extra" in tier.read_proved_tree(shard_copy)
    with tier.open_shard(shard_copy) as opened:
        _, end = opened.shard.chunk_bounds(opened.shard.chunks - 1)
        proved = opened.shard.read_verified(0, end)
        opened.confirm()
    committed = next((ground.site.root / ground.site.attempt).glob("shard-*")).read_bytes()
    assert proved == committed[:end] and end > FLIPPED_BYTE


@each_tier
def test_damage_is_never_handed_on(ground: Ground, name: str) -> None:
    tier = ground.tiers[name]
    shard_copy = ground.newest_copy(tier)
    ground.damage_tensors(name)

    with pytest.raises(DigestMismatch), tier.open_shard(shard_copy) as opened:
        opened.shard.read_verified(0, opened.shard.chunk_bounds(opened.shard.chunks - 1)[1])


@each_tier
def test_what_is_of_another_run_or_rank_is_not_listed(ground: Ground, name: str) -> None:
    for run_id, rank in (("another-run", 0), (ground.site.run_id, 1)):
        others = tiers.of_rank(run_id, rank, slots=slots_of_this_user(), local=str(ground.site.local))
        assert [tier.list_copies() for tier in others if tier.name == name] == [[]]


def remove_from_memory(ground: Ground) -> None:
    for slot in slots_of_this_user():
        if slot.page is not None and slot.page.state == SlotState.SEALED:
            slot.transition(SlotState.FREE)


def remove_from_disk(ground: Ground) -> None:
    for path in ground.site.local.rglob("*"):
        if path.is_file():
            path.unlink()


REMOVE = {"memory": remove_from_memory, "local": remove_from_disk}


@each_tier
def test_what_is_gone_is_an_error_and_not_listed(ground: Ground, name: str) -> None:
    tier = ground.tiers[name]
    shard_copy = ground.newest_copy(tier)
    REMOVE[name](ground)
    with pytest.raises((CheckpointError, OSError)):
        tier.read_proved_tree(shard_copy)
    with pytest.raises((CheckpointError, OSError)), tier.open_shard(shard_copy):
        pass
    assert tier.list_copies() == []


def test_a_snapshot_that_is_freed_while_it_is_read_is_not_confirmed(ground: Ground) -> None:
    tier = ground.tiers["memory"]
    with tier.open_shard(ground.newest_copy(tier)) as opened:
        opened.confirm()
        remove_from_memory(ground)
        with pytest.raises(CheckpointError, match="freed while it was read"):
            opened.confirm()
