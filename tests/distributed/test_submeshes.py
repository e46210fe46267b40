"""A tensor that several sub-meshes of the ranks hold alike is saved once and restored on every rank, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
load_file = pytest.importorskip("safetensors.torch").load_file

from hyperpod_kit.checkpoint import cli  # noqa: E402
from hyperpod_kit.checkpoint.repository.format.rows import decode_index_file as read_rows  # noqa: E402
from hyperpod_kit.checkpoint.repository.read import verify  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from tests.distributed import sharded_job, submeshes_job  # noqa: E402
from tests.support.rows import full  # noqa: E402

pytestmark = pytest.mark.distributed


def saved_once(root: str) -> None:
    """Each item of each tensor is in one shard, and the ranks of all sub-meshes share the writing."""
    newest = next(entry for entry in catalog.list_checkpoints(root) if entry.committed)
    verify.verify_checkpoint(root, newest.checkpoint_id)
    rows = read_rows(Path(root, newest.checkpoint_id, "index.bin").read_bytes())
    for name in rows:
        pieces = rows[name]
        items = sum(_items(piece.spec.shape) for piece in pieces)
        assert items == _items(pieces[0].spec.full_shape), name
    assert {piece.shard for name in rows for piece in rows[name] if ".out." in name} == {0, 1, 2, 3}


def _items(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


@pytest.mark.parametrize(
    ("kind", "tier", "form"),
    [
        ("tp x fsdp", "storage", "State"),
        *full(
            ("tp x fsdp", "memory", "State"),
            ("tp x fsdp", "storage", "StateDict"),
            ("tp x fsdp", "storage", "full"),
            ("tp x hsdp", "storage", "State"),
            ("tp x hsdp", "memory", "StateDict"),
            ("stages x fsdp", "storage", "State"),
            ("stages x fsdp", "memory", "State"),
        ),
    ],
)
def test_the_same_ranks_restore_every_bit(tmp_path: Path, kind: str, tier: str, form: str) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, 4, submeshes_job.job, kind, root, "save", tier, form)
    assert all(answer["reached"] for answer in saved), saved
    found = sharded_job.run(tmp_path, 4, submeshes_job.job, kind, root, "restore", "storage", form)
    for before, after in zip(saved, found, strict=True):
        assert (after["found"], after["tier"], after["rejected"]) == ("Restored", tier, [])
        assert after["holds"] == before["holds"] and after["after"] == before["after"]
        assert len(before["holds"]) >= 20
    assert os.listdir(tmp_path / "shm") == []
    if tier == "storage" and form == "State" and kind == "tp x fsdp":
        saved_once(root)


@pytest.mark.parametrize("kind", ["tp x fsdp", *full("tp x hsdp", "stages x fsdp")])
def test_the_ranks_together_need_no_more_room_than_the_model_takes(tmp_path: Path, kind: str) -> None:
    answers = sharded_job.run(tmp_path, 4, submeshes_job.room_needed, kind)
    needs, models = [need for need, _ in answers], {model for _, model in answers}
    stages = 2 if kind == "stages x fsdp" else 1
    whole_model = max(models) * stages
    assert whole_model / (2 * stages) < sum(needs) <= whole_model


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("tp x fsdp", 4), ("tp x fsdp", 2)),
        (("tp x fsdp", 2), ("tp x fsdp", 4)),
        (("tp x fsdp", 4), ("plain", 1)),
        (("plain", 1), ("tp x hsdp", 4)),
        (("tp x hsdp", 4), ("fsdp", 2)),
        (("fsdp", 3), ("tp x fsdp", 4)),
    ],
)
def test_other_ranks_restore_every_bit(tmp_path: Path, before: tuple[str, int], after: tuple[str, int]) -> None:
    root = str(tmp_path / "root")
    form = "StateDict" if "plain" in (before[0], after[0]) else "State"
    saved = sharded_job.run(tmp_path, before[1], submeshes_job.job, before[0], root, "save", "storage", form)
    found = sharded_job.run(tmp_path, after[1], submeshes_job.job, after[0], root, "restore", "storage", form)
    for answer in found:
        assert answer["found"] == "Restored" and answer["holds"] == saved[0]["holds"]


@pytest.mark.full
def test_through_torch_distributed_checkpoint_into_other_divisions(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, 4, submeshes_job.through_dcp, "tp x fsdp", root, "save")
    for world, kind in ((4, "tp x fsdp"), (4, "tp x hsdp"), (2, "tp x fsdp"), (1, "plain")):
        found = sharded_job.run(tmp_path, world, submeshes_job.through_dcp, kind, root, "load")
        assert all(one == saved[0] for one in found), kind


@pytest.mark.full
def test_weights_diff_and_export_of_what_sub_meshes_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = [str(tmp_path / name) for name in ("divided", "whole")]
    saved = sharded_job.run(tmp_path, 4, submeshes_job.job, "tp x fsdp", roots[0], "save", "storage", "StateDict")[0]
    sharded_job.run(tmp_path, 1, submeshes_job.job, "plain", roots[1], "save", "storage", "StateDict")
    for world, kind in ((4, "tp x hsdp"), (2, "tp x fsdp"), (1, "plain")):
        for found in sharded_job.run(tmp_path, world, submeshes_job.weights, kind, roots[0]):
            assert found == {name: saved["holds"][name] for name in found} and len(found) == 8
    assert cli.main(["diff", *roots]) == 0, capsys.readouterr().out
    for root in roots:
        assert cli.main(["export", root, "--to", "safetensors", "--out", f"{root}.safetensors"]) == 0
    exported = [load_file(f"{root}.safetensors") for root in roots]
    assert exported[0].keys() == exported[1].keys() and len(exported[0]) == 8
    assert all(torch.equal(exported[0][name], exported[1][name]) for name in exported[0])


@pytest.mark.parametrize(
    ("kind", "when", "words"),
    [
        ("other shapes", "restore", ("model.w is F32 [4, 6] [0, 1]", "F32 [4, 8] [2, 3]", "State(own=['model.w'])")),
        *full(
            ("other types", "restore", ("model.w is F32 [4, 6] [0, 1]", "F64 [4, 6] [2, 3]")),
            ("other placements", "restore", ("model.w is F32", "Shard(dim=0)", "Shard(dim=1)")),
            ("other extents", "restore", ("model.w is F32", "[0, 1, 2]", "[3]")),
            ("one part lacks", "restore", ("model.w is F32 [4, 6] [2, 3]", "rank 3 holds no part")),
            ("other values", "save", ("model.w has other bytes on rank", "State(own=['model.w'])")),
        ),
    ],
)
def test_what_is_no_copy_is_refused_by_name(tmp_path: Path, kind: str, when: str, words: tuple[str, ...]) -> None:
    root = str(tmp_path / "root")
    for moment, reason in sharded_job.run(tmp_path, 4, submeshes_job.refused, kind, root):
        assert moment == when and all(word in reason for word in words), (moment, reason)
    assert not any(entry.committed for entry in catalog.list_checkpoints(root))
