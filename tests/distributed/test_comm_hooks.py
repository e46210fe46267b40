"""What DDP's communication hooks keep from step to step is saved and restored like the rest of the state."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

from hyperpod_kit.checkpoint.state import comm_hooks  # noqa: E402
from tests.distributed import comm_hooks_job, sharded_job  # noqa: E402

pytestmark = pytest.mark.distributed


def test_a_restored_run_has_the_losses_of_one_that_went_on(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    before = sharded_job.run(tmp_path, 2, comm_hooks_job.train, root)
    after = sharded_job.run(tmp_path, 2, comm_hooks_job.train, root, comm_hooks_job.WARM_UP)
    for undisturbed, restored in zip(before, after, strict=True):
        assert undisturbed["from"] == 0 and restored["from"] == comm_hooks_job.SAVED_STEP + 1
        assert restored["losses"] == undisturbed["losses"] and len(restored["losses"]) == 3
        assert restored["iter"] == undisturbed["iter"] and restored["errors"] == [0]
        assert not restored["begins anew"]


@pytest.mark.full
def test_what_is_of_other_buckets_is_not_mixed_with_those_here(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    before = sharded_job.run(tmp_path, 2, comm_hooks_job.train, root)
    after = sharded_job.run(tmp_path, 2, comm_hooks_job.train, root)
    for undisturbed, restored in zip(before, after, strict=True):
        assert restored["begins anew"] and restored["iter"] == undisturbed["iter"]
        assert restored["losses"] != undisturbed["losses"]


@pytest.mark.full
def test_on_other_ranks_errors_begin_anew_and_the_warm_start_goes_on(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    sharded_job.run(tmp_path, 2, comm_hooks_job.train, root)
    for answer in sharded_job.run(tmp_path, 3, comm_hooks_job.errors_after_restore, root):
        assert answer == {"iter": comm_hooks_job.SAVED_STEP + 1, "errors": [], "warm start": [0]}


@pytest.mark.full
def test_a_checkpoint_without_it_is_restored_with_a_warning(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    sharded_job.run(tmp_path, 2, comm_hooks_job.train, root, 0, False)
    for messages in sharded_job.run(tmp_path, 2, comm_hooks_job.without_state_in_checkpoint, root):
        assert len(messages) == 1 and "they start with an empty state" in messages[0]


@pytest.mark.parametrize("kept", [False, pytest.param(True, marks=pytest.mark.full)])
def test_tensors_of_a_hook_of_ones_own(tmp_path: Path, kept: bool) -> None:
    root = str(tmp_path / "root")
    for answer in sharded_job.run(tmp_path, 2, comm_hooks_job.own_state, root, kept):
        if kept:
            assert answer == "[7.0, 7.0, 7.0]"
        else:
            assert "CountingState with tensors" in answer and "state_dict and load_state_dict" in answer


def test_a_container_that_holds_itself_is_searched_once() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert not comm_hooks._holds_tensors(SimpleNamespace(ring=ring))
    assert comm_hooks._holds_tensors(SimpleNamespace(ring=ring, inner={"errors": (torch.zeros(1),)}))
