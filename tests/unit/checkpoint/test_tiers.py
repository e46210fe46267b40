"""What every tier besides the root must hold: one suite for all of them, as for the stores."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint import tiers
from hyperpod_kit.checkpoint.agent.partner import partner_memory, partner_wire
from hyperpod_kit.checkpoint.agent.shm import node_tiers, shm_paths, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.checkpoint.agent_client import partner_link
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.tiers.base import HeldShard, RankSite, Tier
from hyperpod_kit.checkpoint.tiers.local_disk import LocalDiskTier
from hyperpod_kit.checkpoint.tiers.memory import MemoryTier
from hyperpod_kit.checkpoint.tiers.partner import PartnerTier
from hyperpod_kit.errors import CheckpointError, DigestMismatch
from tests.unit.checkpoint.test_restore_tiers import Site

FLIPPED_BYTE = 20_000
"""Inside of a tensor of the site's model."""


def slots_of_this_user() -> list[shm_slots.Slot]:
    folder = shm_paths.shared_memory_root()
    return list(shm_slots.attach_each_mappable(folder, shm_slots.own_slot_names(folder)))


class Ground:
    """A run whose newest checkpoint is on one tier."""

    tier_class: type[Tier]

    def __init__(self, site: Site, shm: Path) -> None:
        self.site, self.shm = site, shm

    def rank_site(self, run_id: str, rank: int) -> RankSite:
        raise NotImplementedError

    def tier_of(self, run_id: str, rank: int) -> Tier:
        """That tier, of some run and rank, as a restore has it."""
        [tier] = [each for each in tiers.of_rank(self.rank_site(run_id, rank)) if type(each) is self.tier_class]
        return tier

    @property
    def tier(self) -> Tier:
        return self.tier_of(self.site.run_id, 0)

    def newest_copy(self, tier: Tier) -> HeldShard:
        [shard_copy] = [each for each in tier.list_copies() if each.checkpoint_id == self.site.attempt]
        return shard_copy

    def damage_tensors(self) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError


def flip(paths: list[Path]) -> None:
    assert paths
    for path in paths:
        content = bytearray(path.read_bytes())
        content[FLIPPED_BYTE] ^= 1
        path.write_bytes(content)


class MemoryGround(Ground):
    tier_class: type[Tier] = MemoryTier

    def rank_site(self, run_id: str, rank: int) -> RankSite:
        return RankSite(run_id, rank, slots_of_this_user(), str(self.site.local))

    def damage_tensors(self) -> None:
        flip(list(self.shm.glob("*.img")))

    def remove(self) -> None:
        for slot in slots_of_this_user():
            if slot.page is not None and slot.page.state == SlotState.SEALED:
                slot.transition(SlotState.FREE)


class PartnerGround(MemoryGround):
    """This rank's memory is lost, and its partner's agent, here of the same node, has copies of it."""

    tier_class = PartnerTier

    def __init__(self, site: Site, shm: Path) -> None:
        super().__init__(site, shm)
        copies = Path(partner_memory.copies_directory(str(shm)))
        copies.mkdir()
        for path in shm.glob("hpk-*.*"):
            path.rename(copies / path.name)
        self.link = link_to_agent_in(shm, site.run_id)
        super().tier.fetch_lost_snapshot()

    def rank_site(self, run_id: str, rank: int) -> RankSite:
        return RankSite(run_id, rank, slots_of_this_user(), str(self.site.local), self.link)


def link_to_agent_in(shm: Path, run_id: str, *, token: str = "token", port: int = 0) -> partner_link.PartnerLink:
    if not port:
        run = shm_slots.run_hash(run_id)
        port = partner_wire.PartnerServer(str(shm), run, run_id, "token", 1, ["127.0.0.1"]).port
    start: Any = SimpleNamespace(token=token, run=SimpleNamespace(run_id=run_id), hosts=["localhost"])
    agent: Any = SimpleNamespace(shm_folder=str(shm), partner_port=port)
    return partner_link.PartnerLink(Ranks(), start, agent)


class LocalDiskGround(Ground):
    tier_class = LocalDiskTier

    def rank_site(self, run_id: str, rank: int) -> RankSite:
        return RankSite(run_id, rank, (), str(self.site.local))

    def damage_tensors(self) -> None:
        flip(list(self.site.local.rglob("shard-*")))

    def remove(self) -> None:
        for path in self.site.local.rglob("*"):
            if path.is_file():
                path.unlink()


GROUNDS: tuple[type[Ground], ...] = (PartnerGround, MemoryGround, LocalDiskGround)


@pytest.fixture(params=GROUNDS, ids=lambda ground: ground.tier_class.__name__)
def ground(request: pytest.FixtureRequest, shm: Path, tmp_path: Path) -> Ground:
    made: Ground = request.param(Site(tmp_path), shm)
    return made


def test_every_tier_is_in_this_suite_and_known_to_the_node() -> None:
    modules = {path.stem for path in Path(inspect.getfile(tiers)).parent.glob("*.py")} - {"__init__", "base"}
    assert {tier_class.__module__.rpartition(".")[2] for tier_class in tiers.TIER_CLASSES} == modules
    assert [ground.tier_class for ground in GROUNDS] == list(tiers.TIER_CLASSES)
    known = {tier_class.node_tier for tier_class in tiers.TIER_CLASSES}
    assert known == set(node_tiers.NODE_TIERS), "a row for each tier, and a tier for each row"
    assert tiers.TIERS == ("memory", "local", "storage"), "the cheapest first"


def test_a_copy_says_what_proves_it(ground: Ground) -> None:
    shard_copy = ground.newest_copy(ground.tier)
    record = verify.read_manifest(str(ground.site.root), ground.site.attempt).shards[0]
    assert (shard_copy.tier, shard_copy.world) == (ground.tier_class.name, 1)
    assert (shard_copy.root, shard_copy.size) == (record.root, record.size)


def test_all_of_a_shard_and_its_tree_are_read_and_proved(ground: Ground) -> None:
    tier = ground.tier
    shard_copy = ground.newest_copy(tier)
    assert "extra" in tier.read_proved_tree(shard_copy)
    with tier.open_shard(shard_copy) as opened:
        _, end = opened.shard.chunk_bounds(opened.shard.chunks - 1)
        proved = opened.shard.read_verified(0, end)
        opened.confirm()
    committed = next((ground.site.root / ground.site.attempt).glob("shard-*")).read_bytes()
    assert proved == committed[:end] and end > FLIPPED_BYTE


def test_damage_is_never_handed_on(ground: Ground) -> None:
    tier = ground.tier
    shard_copy = ground.newest_copy(tier)
    ground.damage_tensors()
    with pytest.raises(DigestMismatch), tier.open_shard(shard_copy) as opened:
        opened.shard.read_verified(0, opened.shard.chunk_bounds(opened.shard.chunks - 1)[1])


def test_what_is_of_another_run_or_rank_is_not_listed(ground: Ground) -> None:
    for run_id, rank in (("another-run", 0), (ground.site.run_id, 1)):
        assert ground.tier_of(run_id, rank).list_copies() == []


def test_what_is_gone_is_an_error_and_not_listed(ground: Ground) -> None:
    tier = ground.tier
    shard_copy = ground.newest_copy(tier)
    ground.remove()
    with pytest.raises((CheckpointError, OSError)):
        tier.read_proved_tree(shard_copy)
    with pytest.raises((CheckpointError, OSError)), tier.open_shard(shard_copy):
        pass
    assert tier.list_copies() == []


def test_what_is_not_lost_is_not_fetched_again(ground: Ground) -> None:
    before = ground.tier.list_copies()
    ground.tier.fetch_lost_snapshot()
    assert ground.tier.list_copies() == before and len(before) > 0


def test_a_snapshot_that_is_freed_while_it_is_read_is_not_confirmed(shm: Path, tmp_path: Path) -> None:
    ground = MemoryGround(Site(tmp_path), shm)
    tier = ground.tier
    with tier.open_shard(ground.newest_copy(tier)) as opened:
        opened.confirm()
        ground.remove()
        with pytest.raises(CheckpointError, match="freed while it was read"):
            opened.confirm()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["refused", "of another start"])
def test_a_partner_that_gives_nothing_costs_a_copy_and_no_more(
    shm: Path, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    ground = PartnerGround(Site(tmp_path), shm)
    ground.remove()
    for slot in slots_of_this_user():
        slot.unlink()
    if how == "refused":
        ground.link = link_to_agent_in(shm, ground.site.run_id, port=1)
    else:
        ground.link = link_to_agent_in(shm, ground.site.run_id, token="guessed", port=ground.link._endpoints[0][0][1])
    ground.tier.fetch_lost_snapshot()
    assert "was not brought from rank 0's node" in caplog.text
    assert ground.tier.list_copies() == [] and shm_slots.own_slot_names(str(shm)) == []
