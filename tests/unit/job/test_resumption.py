"""What follows from what ranks said: a checkpoint that they cannot read, and one that lies in memory alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.decide.outcome import Outcome
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.resume import checkpoint_choice
from hyperpod_kit.job.resume.proving_step import ProvingStep
from hyperpod_kit.job.resume.resumption import Resumption
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.slurm import verdict
from hyperpod_kit.slurm.verdict import RestoreVerdict
from tests.unit.job.toy_trainer import commit_checkpoint


def resumption(root: Path) -> Resumption:
    proving = ProvingStep(RunOptions(str(root), ()), {}, JobReport())
    return Resumption(RunOptions(str(root), ()), None, proving)  # type: ignore[arg-type]


def unreadable(root: Path, name: str, attempt: str) -> RestoreVerdict:
    (root / ".hpk").mkdir(exist_ok=True)
    found = RestoreVerdict("", rejected=((name, "Input/output error"),), error="StorageUnreadable", why="no")
    verdict.write_verdict_if_under_job_run({"HPK_STATE": str(root / ".hpk"), "HPK_ATTEMPT": attempt}, found)
    return found


def row(found: RestoreVerdict, restart: int) -> dict[str, Any]:
    return {"event": "restored", "restart": restart, **found.to_report_fields()}


def test_a_checkpoint_that_cannot_be_read_is_passed_over_when_other_nodes_could_not_either(tmp_path: Path) -> None:
    found = unreadable(tmp_path, "seq-000002", "7.0.0")
    first = resumption(tmp_path)
    assert first.read_and_remember_verdicts("7.0.0") and first.find_unreadable([row(found, 0)], 0) is None, (
        "other nodes are tried"
    )
    second = resumption(tmp_path)
    second.read_and_remember_verdicts("7.0.0")
    checkpoint = second.find_unreadable([row(found, 0)], 1)
    assert checkpoint is not None
    second.pass_over(checkpoint)
    assert list(second.unreadable) == ["seq-000002"]
    # Passing over it has not helped, so there is nothing else: the job is handed back, which has a budget.
    assert second.find_unreadable([row(found, 0)], 1) is None


@pytest.mark.parametrize("committed", [True, False])
def test_stepping_back_from_a_capture_in_memory_turns_memory_off(tmp_path: Path, committed: bool) -> None:
    """It is nowhere in the root, so nothing there says that it was passed over."""
    if committed:
        commit_checkpoint(str(tmp_path), 1, 1, 10)
    memory = str(layout.CheckpointId(2, 20, 1, "abcd"))
    choice = checkpoint_choice.choose(str(tmp_path), passed_over={memory: "twice after loading it"})
    assert choice.step == (10 if committed else 0) and choice.environment()["HPK_RESUME_MEMORY"] == "0"
    assert "HPK_RESUME_MEMORY" not in checkpoint_choice.choose(str(tmp_path)).environment()


def test_shared_memory_that_can_never_be_enough_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / ".hpk").mkdir()
    found = RestoreVerdict("", error="NotEnoughSharedMemory", why="/dev/shm holds 67 MB: --shm-size=1g")
    verdict.write_verdict_if_under_job_run({"HPK_STATE": str(tmp_path / ".hpk"), "HPK_ATTEMPT": "7.0.0"}, found)
    tried = resumption(tmp_path)
    tried.read_and_remember_verdicts("7.0.0")
    given = tried.nothing_left(Outcome(OutcomeKind.CRASH, 1))
    assert given is not None and "--shm-size=1g" in given.message
