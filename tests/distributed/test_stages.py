"""Ranks that hold other names are saved and restored bit for bit, or refused with the tensor and the way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.repository.format.rows import decode_index_file as read_rows
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog
from tests.distributed import sharded_job, stages_job
from tests.support.rows import full

pytestmark = pytest.mark.distributed


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "world", "tier", "own"),
    [
        ("stages", 2, "memory", []),
        ("stages_dp", 4, "storage", []),
        ("submesh", 2, "storage", []),
        ("submesh_same", 4, "storage", ["model.w"]),
        ("experts", 2, "memory", ["model.experts.*"]),
        *full(
            ("stages", 2, "storage", []),
            ("stages", 3, "storage", []),
            ("stages_dp", 4, "memory", []),
            ("submesh", 4, "storage", []),
            ("experts", 2, "storage", ["model.experts.*"]),
        ),
    ],
)
def test_every_rank_gets_back_every_bit(tmp_path: Path, kind: str, world: int, tier: str, own: list[str]) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, world, stages_job.job, kind, root, "save", own, tier)
    assert all(answer["reached"] for answer in saved), saved
    found = sharded_job.run(tmp_path, world, stages_job.job, kind, root, "restore", own)
    for before, after in zip(saved, found, strict=True):
        assert (after["got"], after["tier"], after["rejected"]) == ("Restored", tier, [])
        assert after["holds"] == before["holds"] and len(before["holds"]) > 2
    assert os.listdir(tmp_path / "shm") == []
    newest = next(entry for entry in catalog.list_checkpoints(root) if entry.committed)
    body = verify.verify_checkpoint(root, newest.checkpoint_id)
    rows = read_rows(Path(root, newest.checkpoint_id, "index.bin").read_bytes())
    assert body.tensors == sum(not name.startswith("rank.") for name in rows)
    if kind == "stages_dp":
        # Written once by the ranks that hold it, and by both of them about half.
        assert {piece.shard for piece in rows["model.stage1.weight"]} < {2, 3} and len(rows["model.embed.weight"]) == 1
        assert {piece.shard for name in rows if "stage0" in name for piece in rows[name]} == {0, 1}


@pytest.mark.full
@pytest.mark.parametrize("after", [3, *full(1)])
def test_a_tensor_of_each_rank_alone_goes_to_other_ranks_as_everything_of_theirs_does(
    tmp_path: Path, after: int
) -> None:
    root, own = str(tmp_path / "root"), ["model.experts.*"]
    saved = sharded_job.run(tmp_path, 2, stages_job.job, "experts", root, "save", own)
    found = sharded_job.run(tmp_path, after, stages_job.job, "experts", root, "restore", own)
    for rank, answer in enumerate(found):
        assert answer["got"] == "Restored"
        assert answer["holds"] == saved[rank if rank < 2 else 0]["holds"]


@pytest.mark.full
def test_what_was_taken_to_be_alike_can_be_made_each_ranks_own_later(tmp_path: Path) -> None:
    root, believed = str(tmp_path / "root"), {"compare": None}
    saved = sharded_job.run(tmp_path, 2, stages_job.job, "stages_dp", root, "save", [], "storage", believed)
    found = sharded_job.run(tmp_path, 2, stages_job.job, "stages_dp", root, "restore", ["model.embed.*"])
    assert [one["holds"] for one in found] == [one["holds"] for one in saved]


@pytest.mark.parametrize(
    ("kind", "world", "words"),
    [
        (
            "shapes",
            2,
            ("model.weight is F32 [3, 8] on rank 0 and F32 [3, 16] on rank 1", "State(own=['model.weight'])"),
        ),
    ],
)
def test_one_name_for_tensors_that_cannot_be_one_is_refused_at_the_start(
    tmp_path: Path, kind: str, world: int, words: tuple[str, ...]
) -> None:
    for error in sharded_job.run(tmp_path, world, stages_job.refused_at_restore, kind, str(tmp_path / "root")):
        assert all(word in error for word in words), error


@pytest.mark.parametrize(
    ("kind", "words"),
    [("stages", ("model.stage0.", "rank 0", "rank 1", "restore()")), ("shapes", ("model.", "[3, 8]", "[3, 16]"))],
)
def test_who_does_not_restore_first_hears_what_the_ranks_do_not_agree_about(
    tmp_path: Path, kind: str, words: tuple[str, ...]
) -> None:
    root = str(tmp_path / "root")
    for state, reason in sharded_job.run(tmp_path, 2, stages_job.saved_without_restore, kind, root):
        assert state == "failed" and all(word in reason for word in words), reason
    assert not any(entry.committed for entry in catalog.list_checkpoints(root))


def test_names_that_change_in_mid_training_never_make_a_hole(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    for first, second, third in sharded_job.run(tmp_path, 2, stages_job.changes_in_mid_training, root):
        assert first[0] == third[0] == "durable", (first, third)
        assert second[0] == "failed" and "model.late" in second[1], second
    assert [entry.name.step for entry in catalog.list_checkpoints(root) if entry.committed] == [2, 0]
