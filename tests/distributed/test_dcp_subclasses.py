"""Tensor subclasses by torch's own `save` and `load` with our Writer and Reader: kept by the tensors that they are made
of, filled where they lie, on other ranks too; what cannot be is refused by name, and nothing is committed."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import cli  # noqa: E402
from hyperpod_kit.checkpoint.repository import selection  # noqa: E402
from hyperpod_kit.checkpoint.repository.read import verify  # noqa: E402
from tests.distributed import sharded_job, subclasses_job  # noqa: E402
from tests.support.rows import full  # noqa: E402

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(("writers", "readers"), [(2, 3), *full((2, 2), (2, 1), (1, 2))])
def test_they_are_kept_and_filled_where_they_lie(tmp_path: Path, writers: int, readers: int) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, writers, subclasses_job.save, root)
    verify.verify_checkpoint(root, selection.newest_valid(root).checkpoint_id)
    loaded = sharded_job.run(tmp_path, readers, subclasses_job.load, root)
    for answer in loaded:
        assert answer["numbers"] == saved[0]["numbers"] and answer["in place"], answer
    assert list(chain(*(answer["rows"] for answer in loaded))) == list(chain(*(answer["rows"] for answer in saved)))


@pytest.mark.full
def test_what_a_collective_is_still_making_is_filled(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    for answer in sharded_job.run(tmp_path, 2, subclasses_job.unsettled, root):
        assert answer["class"] == "AsyncCollectiveTensor" and answer["sum"] == answer["expected"]


@pytest.mark.full
def test_what_a_manager_saved_is_loaded_too(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, 2, subclasses_job.save_with_manager, root)
    for answer in sharded_job.run(tmp_path, 3, subclasses_job.load, root):
        assert answer["numbers"] == saved[0]["numbers"] and answer["in place"]


@pytest.mark.full
def test_what_each_rank_has_for_itself_is_restored_by_as_many_ranks_only(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, 2, subclasses_job.save, root, False)
    loaded = sharded_job.run(tmp_path, 2, subclasses_job.load, root)
    assert [answer["numbers"]["scale"] for answer in loaded] == [answer["numbers"]["scale"] for answer in saved]
    assert loaded[0]["numbers"]["scale"] != loaded[1]["numbers"]["scale"]
    for answer in sharded_job.run(tmp_path, 3, subclasses_job.load, root):
        assert "model.divided.scale has a part that 2 ranks have each for itself" in answer["refused"]


@pytest.mark.full
def test_without_the_program_they_are_the_tensors_that_they_are_made_of(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    numbers = sharded_job.run(tmp_path, 2, subclasses_job.save, root)[0]["numbers"]
    answer = sharded_job.run(tmp_path, 1, subclasses_job.load_without_tensors, root)[0]
    assert answer["names"] == ["divided", "nested", "parameter", "plain", "usual", "view"]
    assert [answer["whole"], answer["scale"]] == numbers["plain"][:2]
    output = tmp_path / "exported.pt"
    assert cli.main(["export", root, "--to", "torch", "--out", str(output)]) == 0
    model = torch.load(output, weights_only=True)["model"]
    assert [model["plain"]["whole"].tolist(), model["plain"]["scale"].tolist()] == numbers["plain"][:2]
    assert model["nested"]["whole"]["whole"].tolist() == numbers["nested"][0]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("plain here", "model.plain is a tests.unit.checkpoint.test_subclasses:Scaled in the checkpoint, and a plain"),
        *full(
            ("subclass here", "model.usual is a plain tensor in the checkpoint, and a tests.unit.checkpoint"),
            ("other context", "model.plain, a tests.unit.checkpoint.test_subclasses:Scaled, was made with"),
            ("other shape", "model.plain.whole is I8 [4, 6] in the checkpoint, I8 [4, 5] here"),
            ("in a DTensor", "model.divided is a tests.unit.checkpoint.test_subclasses:Scaled in the checkpoint, and"),
        ),
    ],
)
def test_what_is_not_what_was_saved_is_refused_by_name(tmp_path: Path, kind: str, words: str) -> None:
    root = str(tmp_path / "root")
    sharded_job.run(tmp_path, 2, subclasses_job.save, root)
    for answer in sharded_job.run(tmp_path, 2, subclasses_job.load_other, root, kind):
        assert words in answer, answer


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("in a DTensor", "state at model.w is a tensor subclass WithoutParts"),
        *full(
            ("plain", "state at model.w is a tensor subclass WithoutParts"),
            ("in a parameter", "state at model.w is a tensor subclass WithoutParts"),
            ("as a view", "state at model.w is a tensor subclass WithoutParts"),
            ("two names", "model.w.whole is a tensor of the state, and a part of the tensor subclass model.w too"),
        ),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_by_name(tmp_path: Path, kind: str, words: str) -> None:
    root = tmp_path / "root"
    for text in sharded_job.run(tmp_path, 2, subclasses_job.save_refused, str(root), kind):
        assert words in text, text
    assert not list(root.glob("*/manifest*"))
