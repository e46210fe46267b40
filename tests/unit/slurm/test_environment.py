from __future__ import annotations

import pytest

from hyperpod_kit.errors import JobError
from hyperpod_kit.slurm.environment import JobEnvironment, read_auto_resume_option, step_launch_id_with_srun_port
from hyperpod_kit.slurm.job_id import JobId


def test_a_job_reads_itself() -> None:
    job = JobEnvironment.read(
        {"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "4"}
    )
    assert (job.id, job.restart, job.nodes, job.tasks) == (JobId("12"), 2, ("n1", "n2"), 4)


def test_an_array_task_has_a_name_of_its_own() -> None:
    env = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    assert JobEnvironment.read(env).id.slurm_id == "12_3"


HET = {
    "SLURM_JOB_ID": "16",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID_HET_GROUP_0": "16",
    "SLURM_JOB_ID_HET_GROUP_1": "17",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-3]",
}


def test_a_heterogeneous_job_has_the_nodes_of_all_its_components() -> None:
    job = JobEnvironment.read(HET)
    assert (job.id.slurm_id, job.id.step_job_ids, job.nodes) == ("16", ("16", "17"), ("n1", "n2", "n3"))
    assert job.restricted_to_components([0]).nodes == ("n1",)


def test_what_is_inherited_from_a_heterogeneous_job_does_not_count() -> None:
    job = JobEnvironment.read({**HET, "SLURM_JOB_ID": "20", "SLURM_JOB_NODELIST": "n5"})
    assert (job.id, job.nodes, job.groups) == (JobId("20"), ("n5",), ())


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"SLURM_STEP_ID": "3", "SLURM_STEP_LAUNCHER_PORT": "41001"}, "3.41001"),
        ({"SLURM_STEP_ID": "3", "SLURM_SRUN_COMM_PORT": "41001"}, "3.41001"),
        ({}, "0.0"),
        ({"SLURM_STEP_ID": "-5"}, "0.0"),
    ],
)
def test_a_launch_is_named_alike_by_every_slurm(env: dict[str, str], name: str) -> None:
    assert step_launch_id_with_srun_port(env) == name


def test_outside_of_a_job_there_is_a_reason() -> None:
    with pytest.raises(JobError, match="SLURM_JOB_ID"):
        JobEnvironment.read({})


@pytest.mark.parametrize(
    ("env", "comment", "wanted"),
    [
        ({}, "", None),
        ({"HPK_AUTO_RESUME": "0", "SLURM_SPANK_HPK_AUTO_RESUME": "1"}, "", 0),
        ({"SLURM_SPANK_HPK_AUTO_RESUME": "1"}, "", 1),
        ({"HPK_AUTO_RESUME": ""}, "mine hpk:auto-resume=5", 5),
        ({}, "auto-resume=1", None),
    ],
)
def test_the_choice_of_auto_resume(env: dict[str, str], comment: str, wanted: int | None) -> None:
    assert read_auto_resume_option(env, comment) == wanted
