"""HyperPod's step retry: the ranks of an attempt are started again, and told what they were told at its beginning."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.errors import GaveUp
from hyperpod_kit.job.status import timeline
from tests.support.damage import flip
from tests.unit.job.conftest import Job

HERE = Path(__file__).parent


@pytest.fixture
def hyperpod(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr("hyperpod_kit.job.step.srun_step.is_hyperpod_step_retry_available", lambda runner: True)
    job.environment["STEP_RETRY_FAULT"] = str(job.base / "faults")
    return job


def faults(job: Job, count: int) -> None:
    (job.base / "faults").write_text(str(count))


def run(job: Job, *trainer: str, **options: Any) -> int:
    return job.run(*trainer, srun=str(HERE / "hyperpod_srun.py"), **options)


@pytest.mark.full
def test_the_step_goes_on_from_what_this_attempt_has_committed(hyperpod: Job) -> None:
    assert run(hyperpod, "--steps", "5") == 0
    faults(hyperpod, 1)
    assert run(hyperpod, "--steps", "25", "--crash", "17", "--once", str(hyperpod.base / "once"), restart=1) == 0
    # One attempt, of which the ranks were started twice.
    assert [event["step"] for event in hyperpod.said("attempt")] == [0, 5]
    assert [event["step"] for event in hyperpod.said("restored")] == [0, 5, 15]
    assert [attempt.kind for attempt in timeline.attempts(str(hyperpod.root))] == ["done", "done"]


@pytest.mark.full
def test_also_when_retention_has_removed_what_it_began_with(hyperpod: Job) -> None:
    assert run(hyperpod, "--steps", "5") == 0
    [first] = hyperpod.root.glob("seq-*")
    faults(hyperpod, 1)
    program = [sys.executable, str(HERE / "toy_trainer.py"), "--steps", "20", "--crash", "12"]
    program += ["--once", str(hyperpod.base / "once")]
    # The signal that ends the step ends the trainer too, not only its shell.
    trainer = f"trap 'kill $trainer' TERM; {' '.join(program)} & trainer=$!; wait $trainer"
    script = f"{trainer}; code=$?; rm -rf {first}; exit $code"
    assert run(hyperpod, command=["/bin/sh", "-c", script], restart=1) == 0
    assert [event["step"] for event in hyperpod.said("restored")] == [0, 5, 10] and not first.exists()


@pytest.mark.full
@pytest.mark.parametrize("late", ["rank 0", "no rank"])
def test_also_when_the_newest_is_damaged_and_at_the_second_retry(hyperpod: Job, late: str) -> None:
    faults(hyperpod, 3)
    program = f"exec {sys.executable} {HERE / 'toy_trainer.py'} --steps 25 --crash 17 --spoil-at 15"
    wait = "[ $SLURM_PROCID = 0 ] && sleep 1; " if late == "rank 0" else ""
    with pytest.raises(GaveUp, match="1 failure without"):
        run(hyperpod, command=["/bin/sh", "-c", wait + program], policy={"max_restarts": 0})
    steps = [event["step"] for event in hyperpod.said("restored")]
    assert steps[:4] == [0, 10, 10, 10] and hyperpod.said("restored")[1]["rejected"]


@pytest.mark.full
def test_a_crash_without_a_fault_of_the_hardware_is_ours_to_retry(hyperpod: Job) -> None:
    assert run(hyperpod, "--steps", "12", "--crash", "8:3", "--once", str(hyperpod.base / "once")) == 0
    assert [event["class"] for event in hyperpod.said("ended")] == ["crash", "done"]
    assert hyperpod.started_at() == [0, 5]


@pytest.mark.full
def test_only_the_last_launch_says_who_failed(hyperpod: Job) -> None:
    faults(hyperpod, 1)
    once = hyperpod.base / "once"
    first = f"{sys.executable} {HERE / 'toy_trainer.py'} --steps 20 --crash 8:KILL --once {once}"
    script = f"if [ -e {once} ]; then [ $SLURM_PROCID = 0 ] && exit 5; exec sleep 60; fi; exec {first}"
    with pytest.raises(GaveUp, match="1 failure without"):
        run(hyperpod, command=["/bin/sh", "-c", script], policy={"max_restarts": 0})
    assert hyperpod.said("ended")[0]["first"] == {"rank": 0, "node": "n1", "code": 5, "signal": None}


def test_a_trainer_of_another_framework_does_not_begin_anew(hyperpod: Job) -> None:
    """In its first attempt it was told of nothing, and days of training would be done again over their own files."""
    faults(hyperpod, 1)
    hyperpod.root.mkdir()
    program = (
        f'exec {sys.executable} {HERE / "third_party.py"} --output_dir "$HPK_CHECKPOINT_ROOT"'
        ' $([ "$HPK_RESUME_FROM" = none ] || echo --resume_from_checkpoint "$HPK_CHECKPOINT_ROOT/$HPK_RESUME_FROM")'
    )
    assert run(hyperpod, command=["/bin/sh", "-c", program]) == 0
    assert len(hyperpod.said("attempt")) == 1
    records = sorted((hyperpod.root / ".hpk" / "decisions").glob("launch-*.json"))
    told = [json.loads(record.read_text()) for record in records]
    # The newest was torn when the machine went down.
    assert [one["from"] for one in told] == ["none", "checkpoint-10"] and told[1]["kind"] == "huggingface"


def test_what_job_run_has_stepped_back_from_stays_passed_over(hyperpod: Job) -> None:
    assert run(hyperpod, "--steps", "20") == 0
    newest = sorted(hyperpod.root.glob("seq-*"))[-1]
    flip(newest / layout.shard_file(0), 3)
    faults(hyperpod, 0)
    assert run(hyperpod, "--steps", "22") == 0
    assert hyperpod.said("restored")[-1]["step"] == 15
    shutil.rmtree(newest)
