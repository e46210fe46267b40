from __future__ import annotations

import pytest

from hyperpod_kit.errors import JobError
from hyperpod_kit.slurm.environment import JobEnvironment, auto_resume


def test_a_job_reads_itself() -> None:
    job = JobEnvironment.read({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NODELIST": "n[1-2]",
                               "SLURM_NTASKS": "4"})
    assert (job.job_id, job.restart, job.nodes, job.tasks, job.requeue_id) == ("12", 2, ("n1", "n2"), 4, "12")


def test_an_array_task_requeues_only_itself() -> None:
    env = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    assert JobEnvironment.read(env).requeue_id == "12_3"


def test_outside_of_a_job_there_is_a_reason() -> None:
    with pytest.raises(JobError, match="SLURM_JOB_ID"):
        JobEnvironment.read({})


@pytest.mark.parametrize(("env", "comment", "wanted"), [
    ({}, "", None),
    ({"HPK_AUTO_RESUME": "0", "SLURM_SPANK_HPK_AUTO_RESUME": "1"}, "", 0),
    ({"SLURM_SPANK_HPK_AUTO_RESUME": "1"}, "", 1),
    ({"HPK_AUTO_RESUME": ""}, "mine hpk:auto-resume=5", 5),
    ({}, "auto-resume=1", None)])
def test_the_choice_of_auto_resume(env: dict[str, str], comment: str, wanted: int | None) -> None:
    assert auto_resume(env, comment) == wanted
