"""What the programs of a node do about every tier in its shared memory, and that none of them forgets one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.checkpoint.agent.flush import abandoned, flush, shm_cleanup
from hyperpod_kit.checkpoint.agent.process import snapshot_registry
from hyperpod_kit.checkpoint.agent.shm import node_tiers
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.node.memory.orphaned_snapshots import OrphanedSnapshots, list_snapshot_owners


class UserDirectory:
    """A directory of this user's in shared memory with one slot of a dead trainer, on one tier."""

    def __init__(self, shm: Path, capture: Any, tier: node_tiers.NodeTier, state: SlotState) -> None:
        self.path = shm / f"hyperpod-kit-{os.getuid()}"
        self._slots = Path(tier.slots_directory(str(self.path)))
        self._slots.mkdir(parents=True, mode=0o700)
        slot = capture(state=state)
        self.run = slot.name.run
        for path in shm.glob("hpk-*.*"):
            path.rename(self._slots / path.name)

    @property
    def slot_files(self) -> list[Path]:
        return list(self._slots.glob("hpk-*.*"))


each_tier = pytest.mark.parametrize("tier", node_tiers.tiers_in_shared_memory(), ids=lambda tier: tier.name)


@each_tier
def test_a_snapshot_is_found_by_whoever_looks_for_those_of_the_dead(
    shm: Path, capture: Any, tier: node_tiers.NodeTier
) -> None:
    directory = UserDirectory(shm, capture, tier, SlotState.CAPTURED)
    assert abandoned.has_expired_or_undated_snapshots([str(directory.path)], excluded_run="")
    assert not abandoned.has_expired_or_undated_snapshots([str(directory.path)], excluded_run=directory.run)
    assert list_snapshot_owners(str(shm)) == [OrphanedSnapshots(os.getuid(), "7", False)]


@each_tier
def test_a_flush_says_what_became_of_it(shm: Path, capture: Any, tier: node_tiers.NodeTier) -> None:
    directory = UserDirectory(shm, capture, tier, SlotState.CAPTURED)
    [outcome] = flush.flush(folder=str(shm), job="7")
    assert outcome.run == directory.run and outcome.removed == (directory.slot_files == [])
    assert outcome.removed == tier.is_captured_here, "its own node saves it; a copy waits until that is done"


@each_tier
def test_what_is_not_whole_is_removed(shm: Path, capture: Any, tier: node_tiers.NodeTier) -> None:
    directory = UserDirectory(shm, capture, tier, SlotState.WRITING)
    shm_cleanup.remove_empty_segments_of_dead_runs(str(directory.path), excluded_run=directory.run)
    assert len(directory.slot_files) == 2
    shm_cleanup.remove_empty_segments_of_dead_runs(str(directory.path), excluded_run="")
    assert directory.slot_files == []


def test_a_tier_that_the_agent_was_not_told_of_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = node_tiers.NodeTier("toy", "toys", False)
    monkeypatch.setattr(node_tiers, "NODE_TIERS", (*node_tiers.NODE_TIERS, toy))
    nothing: Any = None
    setup: Any = type("Setup", (), {"folder": "/dev/shm", "run_hash": "0" * 12, "rank": 0, "incarnation": "abc123"})
    with pytest.raises(TypeError, match="the agent does not know what to do with the tier 'toy'"):
        snapshot_registry.SnapshotRegistry(setup, nothing, nothing, nothing, nothing, nothing)
