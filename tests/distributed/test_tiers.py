"""Each rank takes its shard from where it still is; what cannot be put together any more never holds a job up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.distributed import sharded_job, tier_job
from tests.support.rows import full

pytestmark = pytest.mark.distributed


@pytest.mark.full
def test_memory_disk_and_storage_in_one_restore(tmp_path: Path) -> None:
    root, local = str(tmp_path / "root"), tmp_path / "disk"
    saved = sharded_job.run(tmp_path, 3, tier_job.die, "fsdp2", root, str(local), 2, 2)
    tier_job.take_memory(tmp_path, 1)
    tier_job.take_memory(tmp_path, 2)
    tier_job.take_disk(local, 2)
    found = sharded_job.run(tmp_path, 3, tier_job.come_back, "fsdp2", root, str(local))
    for rank, answer in enumerate(found):
        assert (answer["tier"], answer["step"], answer["rejected"]) == ("memory+local+storage", 1, [])
        assert answer["extra"] == {"rank and step": [rank, 1]}
    assert found[0]["holds"] == saved[0]
    assert os.listdir(tmp_path / "shm") == []


@pytest.mark.full
def test_memory_and_disk_complete_what_never_reached_storage(tmp_path: Path) -> None:
    root, local = str(tmp_path / "root"), tmp_path / "disk"
    saved = sharded_job.run(tmp_path, 2, tier_job.die, "fsdp2", root, str(local), 1, 0)
    tier_job.take_memory(tmp_path, 1)
    tier_job.take_disk(local, 0)
    found = sharded_job.run(tmp_path, 2, tier_job.come_back, "fsdp2", root, str(local))
    assert [(answer["tier"], answer["step"]) for answer in found] == [("memory+local", 0)] * 2, found[0]["rejected"]
    assert found[0]["holds"] == saved[0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (("fsdp2", 3), ("fsdp2", 2), "captured by 3 ranks: this run has 2"),
        *full(
            (("fsdp2", 2), ("fsdp2", 3), "captured by 2 ranks: this run has 3"),
            (("fsdp2", 2), ("ddp", 2), "another layout over the ranks"),
        ),
    ],
)
def test_what_only_other_ranks_could_complete_is_passed_over_visibly(
    tmp_path: Path, before: tuple[str, int], after: tuple[str, int], why: str
) -> None:
    """A job that comes back on fewer nodes goes on from the newest committed checkpoint, by itself."""
    root, local = str(tmp_path / "root"), str(tmp_path / "disk")
    sharded_job.run(tmp_path, before[1], tier_job.die, before[0], root, local, 2, 1)
    found = sharded_job.run(tmp_path, after[1], tier_job.come_back, after[0], root, local)
    for answer in found:
        assert (answer["kind"], answer["step"]) == ("Restored", 0)
        ((attempt, reason),) = answer["rejected"][:1]
        assert ".step-0000000001." in attempt and why in reason and "never committed" in reason


@pytest.mark.full
def test_a_capture_that_one_rank_has_lost_is_passed_over_visibly(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    sharded_job.run(tmp_path, 2, tier_job.die, "fsdp2", root, None, 1, 0)
    tier_job.take_memory(tmp_path, 1)
    found = sharded_job.run(tmp_path, 2, tier_job.come_back, "fsdp2", root, None)
    assert found[0]["kind"] == "Fresh" and {why for _, why in found[0]["rejected"]} == {
        "never committed, and gone or incomplete on rank 1"
    }


@pytest.mark.full
def test_told_to_leave_memory_alone_it_leaves_the_disk_alone_too(tmp_path: Path) -> None:
    root, local = str(tmp_path / "root"), str(tmp_path / "disk")
    sharded_job.run(tmp_path, 2, tier_job.die, "fsdp2", root, local, 2, 1)
    found = sharded_job.run(tmp_path, 2, tier_job.come_back, "fsdp2", root, local, False)
    assert [(answer["tier"], answer["step"]) for answer in found] == [("storage", 0)] * 2
