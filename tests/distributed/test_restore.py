"""Save and restore in every kind of parallelism, by the same ranks and by others, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.distributed import sharded_job
from tests.support.rows import full

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("kind", "world"), [("fsdp2", 2), *full(("fsdp2, factored", 2), ("fsdp1", 2), ("ddp", 2), ("hsdp", 4), ("tp", 2))]
)
def test_the_same_ranks_restore_every_bit(tmp_path: Path, kind: str, world: int) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, world, sharded_job.job, kind, root, "save")
    assert [answer["got"] for answer in saved] == ["Fresh"] * world
    found = sharded_job.run(tmp_path, world, sharded_job.job, kind, root, "restore")
    for before, after in zip(saved, found, strict=True):
        assert after["got"] == "Restored" and after["tier"] == "storage" and after["extra_is_as_saved"]
        assert after["holds"] == before["holds"] and after["after_a_step"] == before["after_a_step"]
    assert len(found[0]["holds"]) > 15 and os.listdir(tmp_path / "shm") == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [("fsdp2", 4, 3), *full(("fsdp2", 4, 2), ("fsdp2", 2, 4), ("fsdp2, factored", 3, 2))],
)
def test_other_ranks_restore_every_bit(tmp_path: Path, kind: str, before: int, after: int) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, before, sharded_job.job, kind, root, "save")
    found = sharded_job.run(tmp_path, after, sharded_job.job, kind, root, "restore")
    assert all(answer["got"] == "Restored" for answer in found)
    assert found[0]["holds"] == saved[0]["holds"]
    assert all(answer["extra_is_as_saved"] for answer in found[:before])
    read = [answer["progress"] for answer in found]  # each chunk by one rank
    assert all(one[-1]["bytes_read"] == one[-1]["bytes_total"] >= one[0]["bytes_read"] for one in read if one)
    shards = Path(root).glob("seq-*/shard-*")
    assert sum(one[-1]["bytes_total"] for one in read if one) == sum(path.stat().st_size for path in shards)


@pytest.mark.full
@pytest.mark.parametrize(
    ("saver", "reader", "worlds"),
    [
        ("hsdp", "ddp", (4, 2)),
        ("tp", "fsdp2", (2, 3)),
        *full(("ddp", "fsdp2", (2, 2)), ("fsdp2", "hsdp", (3, 4)), ("ddp", "tp", (2, 2))),
    ],
)
def test_another_kind_of_parallelism_restores_every_bit(
    tmp_path: Path, saver: str, reader: str, worlds: tuple[int, int]
) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, worlds[0], sharded_job.job, saver, root, "save")
    found = sharded_job.run(tmp_path, worlds[1], sharded_job.job, reader, root, "restore")
    assert all(answer["got"] == "Restored" for answer in found)
    assert found[0]["holds"] == saved[0]["holds"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("saver", "reader", "full"),
    [
        ("fsdp2", "fsdp2", True),
        ("fsdp2", "ddp", False),
        *full(("fsdp1", "fsdp1", True), ("ddp", "ddp", True), ("ddp", "ddp", False)),
    ],
)
def test_whole_tensors_of_rank_0_restore_every_bit(tmp_path: Path, saver: str, reader: str, full: bool) -> None:
    """State(full=True) makes another division among the ranks, whether the one that restores has it or not."""
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, 2, sharded_job.job, saver, root, "save", True)
    found = sharded_job.run(tmp_path, 2, sharded_job.job, reader, root, "restore", full)
    assert all(answer["got"] == "Restored" and answer["extra_is_as_saved"] for answer in found)
    assert found[0]["holds"] == saved[0]["holds"]


@pytest.mark.full
def test_hybrid_sharding_by_process_groups_is_saved_whole(tmp_path: Path) -> None:
    saved, found = (
        sharded_job.run(tmp_path, 4, sharded_job.hybrid_by_groups_whole, str(tmp_path / "root"), seed)
        for seed in (0, 99)
    )
    assert [answer["restored"] for answer in saved] == [False] * 4
    assert [answer["restored"] for answer in found] == [True] * 4
    assert found[0]["holds"] == saved[0]["holds"]


def test_parts_whose_other_holders_are_unknown_are_refused_at_the_first_save(tmp_path: Path) -> None:
    """FSDP1's hybrid sharding by process groups; a device mesh says everything."""
    for error in sharded_job.run(tmp_path, 4, sharded_job.hybrid_by_groups, str(tmp_path / "root")):
        assert "ShardedTensor over 2 of 4 ranks" in error and "device_mesh" in error
