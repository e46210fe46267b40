"""Which steps of Slurm's were to be told a checkpoint, and were not."""

from __future__ import annotations

from typing import Dict

import pytest

from hyperpod_kit.checkpoint.restore.candidates import ResumeFrom
from hyperpod_kit.slurm import undecided

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "HPK_CHECKPOINT_ROOT": "/fsx/run"}


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({}, True),
        ({"HPK_AUTO_RESUME": "1"}, True),
        ({"SLURM_SPANK_HPK_AUTO_RESUME": "3"}, True),
        ({"HPK_AUTO_RESUME": "0"}, False),
        ({"SLURM_SPANK_HPK_AUTO_RESUME": "0"}, False),
        ({"HPK_RESUME_FROM": "none"}, False),
        ({"HPK_RESUME_FROM": "seq-000001.step-0000000001.e1-abcd"}, False),
        ({"HPK_ATTEMPT": "7.0.0"}, False),
        ({"HPK_CHECKPOINT_ROOT": ""}, False),
        ({"SLURM_JOB_ID": ""}, False),
        ({"SLURM_STEP_ID": ""}, False),
        ({"SLURM_STEP_ID": "-5"}, False),
    ],
)
def test_a_step_that_names_a_root_lacks_a_decision(change: Dict[str, str], lacks: bool) -> None:
    env = {**STEP, **change}
    assert undecided.lacks_checkpoint_decision(env) is lacks
    assert bool(ResumeFrom.from_environment(env, "/fsx/run").undecided) is lacks


def test_another_root_than_the_jobs_is_nobodys_to_decide() -> None:
    assert ResumeFrom.from_environment(STEP, "/fsx/base").undecided == ""


def test_the_sentence_names_step_and_root() -> None:
    told = ResumeFrom.from_environment(STEP, "/fsx/run").undecided
    assert told.startswith("step 7.0 was started without a checkpoint being chosen from HPK_CHECKPOINT_ROOT=/fsx/run")
    assert "job doctor" in undecided.HINT and "job run" in undecided.HINT
