"""From which tier a restore takes its shard, what it does when that one is damaged, and what it leaves behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Restored, State, tiers
from hyperpod_kit.checkpoint.agent.persist import local
from hyperpod_kit.checkpoint.agent.reports import shard_report
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.manager import Manager
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import identity, tombstone
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.restore import candidate_run, candidates, restore
from hyperpod_kit.checkpoint.tiers.base import RankSite
from hyperpod_kit.checkpoint.tiers.local_disk import LocalDiskTier
from hyperpod_kit.errors import NoValidCheckpoint, StorageUnreadable
from tests.unit.checkpoint.agent_run import abandon


def weight_of(state: State) -> torch.Tensor:
    assert isinstance(state.model, torch.nn.Linear)
    return state.model.weight


class Site:
    """One run with two checkpoints, steps 0 and 1; the newer one on all three tiers."""

    def __init__(self, folder: Path) -> None:
        self.root, self.local = folder / "root", folder / "disk"
        manager = Manager(self.root)
        state = self.state()
        manager.restore(state)
        for step in range(2):
            torch.nn.init.constant_(weight_of(state), float(step))
            assert manager.save(step, state, on_busy="wait").wait("durable", 60)
        abandon(manager)
        whose = identity.read_or_infer_identity(str(self.root))
        assert whose is not None
        self.run_id = whose.run_id
        self.attempt = next(path.name for path in self.root.glob("seq-*1.e*"))
        self._copy_to_disk()

    @staticmethod
    def state() -> State:
        model = torch.nn.Linear(300, 70)
        return State(model, extra={"turned": torch.arange(6.0).view(2, 3).t()})

    def _copy_to_disk(self) -> None:
        record = verify.read_manifest(str(self.root), self.attempt).shards[0]
        place = local.open_local_store(str(self.local), shm_slots.run_hash(self.run_id))
        Path(place.url, self.attempt).mkdir(parents=True)
        shutil.copy(self.root / self.attempt / record.file, Path(place.url, self.attempt))
        for slot in shm_slots.attach_each_mappable(
            shm_paths.shared_memory_root(), shm_slots.own_slot_names(shm_paths.shared_memory_root())
        ):
            page = slot.page
            if page is not None and page.step == 1:
                report = shard_report.report_of(slot, record)
                place.create(f"{self.attempt}/{layout.report_file(0)}", manifest.seal_json(report.to_json()))
            slot.close()

    def flip(self, folder: Path, name: str) -> None:
        path = next(folder.rglob(name))
        data = bytearray(path.read_bytes())
        data[20_000] ^= 1  # inside a tensor, wherever the file ends
        path.write_bytes(data)

    def restored(self, *, memory: bool = True, first: str | None = None) -> tuple[Any, float]:
        """(result, the weight that it gave)."""
        ranks, state = Ranks(), self.state()
        slots = (
            list(
                shm_slots.attach_each_mappable(
                    shm_paths.shared_memory_root(), shm_slots.own_slot_names(shm_paths.shared_memory_root())
                )
            )
            if memory
            else []
        )
        own_tiers = tiers.of_rank(RankSite(self.run_id, 0, slots, str(self.local)))
        nearer = candidate_run.NearerTiers(self.run_id, own_tiers, threads=1)
        got = restore.restore(
            ranks,
            open_store(str(self.root)),
            state,
            nearer=nearer,
            copies_of_ranks=[nearer.list_copies()],
            resume_from=candidates.ResumeFrom(first),
        ).got
        weight = weight_of(state).detach()
        assert bool((weight == weight[0, 0]).all()) and state.extra["turned"].shape == (3, 2)
        return got, float(weight[0, 0])


@pytest.fixture
def site(shm: Path, tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_cheapest_tier_that_proves_itself_is_taken(site: Site, shm: Path) -> None:
    got, weight = site.restored()
    assert (got.tier, got.step, weight, got.rejected) == ("memory", 1, 1.0, ())
    got, weight = site.restored(memory=False)
    assert (got.tier, got.step, weight) == ("local", 1, 1.0)

    for path in shm.glob("*.img"):
        site.flip(shm, path.name)
    got, weight = site.restored()
    assert (got.tier, got.step, weight) == ("local", 1, 1.0)
    assert [why.split(":")[0] for _, why in got.rejected] == ["in memory"]

    site.flip(site.local, "shard-*")
    got, weight = site.restored()
    assert isinstance(got, Restored) and (got.tier, got.step, weight) == ("storage", 1, 1.0)
    assert [why.split(":")[0] for _, why in got.rejected] == ["in memory", "in local"]
    assert not list(site.root.glob("*.BAD")) and not list((site.root / layout.LEASES).glob("*"))


def test_damage_is_marked_once_proved_and_the_mark_decides_nothing(site: Site, shm: Path) -> None:
    for path in shm.glob("*.img"):
        path.unlink()
    shutil.rmtree(site.local)
    site.flip(site.root / site.attempt, "shard-*")
    got, weight = site.restored(memory=False)
    assert (got.step, weight) == (0, 0.0) and "shard-00000.safetensors bytes" in got.rejected[0][1]
    assert "shard-00000" in str(tombstone.read_damage_reason(open_store(str(site.root)), site.attempt))

    got, weight = site.restored(memory=False)
    assert (got.step, weight) == (0, 0.0) and got.rejected[0][1].startswith("marked as damaged")
    site.flip(site.root / site.attempt, "shard-*")  # whole again, and the mark still there
    site.flip(next(path for path in site.root.glob("seq-*") if path.is_dir() and path.name != site.attempt), "shard-*")
    got, weight = site.restored(memory=False)
    assert (got.step, weight) == (1, 1.0)
    site.flip(site.root / site.attempt, "shard-*")
    with pytest.raises(NoValidCheckpoint):
        site.restored(memory=False)


def test_an_io_error_of_the_root_is_no_reason_to_go_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperpod_kit.checkpoint.repository.store import posix

    shutil.rmtree(site.local)
    newest = str(site.root / site.attempt)
    real = posix.FileReader.__init__

    def failing(self: Any, path: str, **how: Any) -> None:
        if path.startswith(newest) and "shard" in path:
            raise OSError(5, "Input/output error", path)
        real(self, path, **how)

    monkeypatch.setattr(posix.FileReader, "__init__", failing)
    with pytest.raises(StorageUnreadable, match=f"{site.attempt}: in storage: cannot be read: Input/output") as told:
        site.restored(memory=False)
    assert "HPK_RESUME_FROM" in str(told.value.hint) and not list(site.root.glob("*.BAD"))
    # From memory nothing of the root is needed; and who names the older one gets it.
    assert site.restored()[0].tier == "memory"
    older = next(
        entry.checkpoint_id
        for entry in selection.iter_committed_not_excluded_newest_first(str(site.root))
        if entry.checkpoint_id != site.attempt
    )
    got, weight = site.restored(memory=False, first=older)
    assert (got.step, weight) == (0, 0.0)


def test_a_checkpoint_above_the_choice_is_not_called_one_that_was_never_committed(site: Site) -> None:
    """A part of what is committed and was passed over by `job run` is left on a node's disk."""
    older = next(
        entry.checkpoint_id
        for entry in selection.iter_committed_not_excluded_newest_first(str(site.root))
        if entry.checkpoint_id != site.attempt
    )
    parts = local.open_local_store(str(site.local), shm_slots.run_hash(site.run_id))
    held = LocalDiskTier(str(site.local), site.run_id, 0).list_copies()
    assert [one.checkpoint_id for one in held] == [site.attempt] and parts.list()
    ranks = Ranks()
    found = list(
        candidates.iter_candidates_newest_first(
            ranks, open_store(str(site.root)), [held, []], candidates.ResumeFrom(older)
        )
    )
    assert [one.checkpoint_id for one in found] == [site.attempt, older]
    assert (
        found[0].skip_reason == f"newer than {older}, the checkpoint given to this run, and not saved by this attempt"
    )


def test_a_nodes_own_disk_that_fails_is_a_copy_less(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperpod_kit.checkpoint.repository.store import posix

    real = posix.FileReader.__init__

    def failing(self: Any, path: str, **how: Any) -> None:
        if path.startswith(str(site.local)):
            raise OSError(5, "Input/output error", path)
        real(self, path, **how)

    monkeypatch.setattr(posix.FileReader, "__init__", failing)
    got, weight = site.restored(memory=False)
    assert (got.tier, got.step, weight) == ("storage", 1, 1.0) and "in local: cannot be read" in got.rejected[0][1]
