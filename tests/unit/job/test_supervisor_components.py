"""`job run` in arrays and in heterogeneous jobs."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from hyperpod_kit.errors import JobError
from hyperpod_kit.job.records import ledger
from hyperpod_kit.job.status import timeline
from tests.unit.job.conftest import Job


def array_task(job: Job, number: str, array: str, task: str) -> None:
    """The job becomes a task of an array whose siblings have other fates."""
    job.environment.update(SLURM_JOB_ID=number, SLURM_ARRAY_JOB_ID=array, SLURM_ARRAY_TASK_ID=task)
    mine = f"JobId={number} ArrayJobId={array} ArrayTaskId={task} JobState=RUNNING NodeList=n[1-2] Comment=none"
    sibling = f"JobId=99 ArrayJobId={array} ArrayTaskId=0 JobState=COMPLETING NodeList=n9"
    job.runner.answers.update(
        {
            f"squeue job {array}_{task}": mine,
            f"squeue job {number}": mine,
            f"squeue job {array}": f"{mine}\n{sibling}",
            f"scontrol requeue {array}_": "",
            "squeue --steps": f"{array}_0.0 hpk-{array}_0.0.0\n",
        }
    )


@pytest.mark.full
def test_the_last_task_of_an_array_acts_for_itself_alone(job: Job) -> None:
    array_task(job, "7", "7", "3")
    assert job.run("--steps", "12", "--crash", "8:3", "--once", str(job.base / "once")) == 0
    assert [event["attempt"].rpartition("-")[0] or event["attempt"] for event in job.said("attempt")] == [
        "7_3.0.0",
        "7_3.0.1",
    ]
    about = [call for call in job.runner.calls if call.startswith(("squeue job", "squeue", "scancel"))]
    assert any("squeue --steps --noheader -j 7_3 " in call for call in about)
    assert all("7_3" in call for call in about), "nothing is asked of the array, and no sibling's step is ended"
    assert {row["job"] for row in ledger.read(str(job.root / ".hpk" / "attempts.jsonl"))} == {"7_3"}


def test_what_is_inherited_from_an_array_does_not_count(job_in_process: Job) -> None:
    """sbatch inside of an array's task passes SLURM_ARRAY_TASK_ID on to a job that is none."""
    job = job_in_process
    job.environment.update(SLURM_ARRAY_JOB_ID="3", SLURM_ARRAY_TASK_ID="5")
    assert job.run("--steps", "3") == 0
    assert job.said("start")[0]["job"] == "7" and not any("3_5" in call for call in job.runner.calls)


def het(job: Job) -> None:
    job.environment.update(
        SLURM_HET_SIZE="2",
        SLURM_JOB_ID_HET_GROUP_0="7",
        SLURM_JOB_ID_HET_GROUP_1="8",
        SLURM_JOB_NODELIST_HET_GROUP_0="n1",
        SLURM_JOB_NODELIST_HET_GROUP_1="n2",
        SLURM_JOB_NODELIST="n1",
    )
    job.runner.answers["squeue job 7"] = (
        "JobId=7 HetJobId=7 HetJobOffset=0 JobState=RUNNING NodeList=n1 Comment=none\n"
        "JobId=8 HetJobId=7 HetJobOffset=1 JobState=RUNNING NodeList=n2 Comment=none"
    )


def test_a_heterogeneous_job_runs_one_step_over_its_components(job: Job) -> None:
    het(job)
    assert job.run("--steps", "12", "--crash", "8:3", "--once", str(job.base / "once")) == 0
    assert [event["nodes"] for event in job.said("attempt")] == [["n1", "n2"]] * 2
    assert all("--het-group=0,1" in words and "--nodelist=n1" not in words for words in job.sruns)
    assert any(call.startswith("squeue --steps --noheader -j 7,8 ") for call in job.runner.calls)


def test_a_component_can_be_asked_for(job_in_process: Job) -> None:
    job = job_in_process
    het(job)
    job.environment["SLURM_NTASKS"] = "1"
    assert job.run("--steps", "3", srun_args=("--het-group=1",)) == 0
    assert job.said("attempt")[0]["nodes"] == ["n2"] and job.sruns[0].index("--het-group=1") > 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nodes": 1}, "a heterogeneous job has no spare nodes"),
        ({"srun_args": ("--het-group=0-2",)}, "this job has the components 0 to 1"),
        ({"srun_args": ("--het-group=x",)}, "this job has the components 0 to 1"),
    ],
)
def test_what_a_heterogeneous_job_cannot_have_is_refused_at_once(job: Job, options: dict[str, Any], why: str) -> None:
    het(job)
    with pytest.raises(JobError, match=why):
        job.run("--steps", "3", **options)
    assert not (job.base / "srun.log").exists()


def test_a_run_that_slurm_queues_again_is_not_called_cancelled(job: Job) -> None:
    """The node that failed is in the job's record no more: only the restart is counted."""
    trainer = f"sleep 30 & echo $! > {job.base}/pid; wait"

    def requeued() -> bool:
        if not (job.base / "pid").exists():
            return False
        job.runner.answers["squeue job 7"] = (
            "JobId=7 JobState=COMPLETING Reason=None Restarts=1 NodeList=n1 Comment=none"
        )
        return True

    signalled = job.later(signal.SIGTERM, requeued)
    assert job.run(command=["/bin/sh", "-c", trainer]) == 143
    signalled.join(20)
    assert [event["class"] for event in job.said("ended")] == ["requeued"]
    [attempt] = timeline.attempts(str(job.root))
    assert "back into the queue" in attempt.then and "cancelled" not in json.dumps(job.events)
