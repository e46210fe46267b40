"""One task of an array, asked for and acted upon alone. What Slurm prints is from 22.05.8 and 24.11.5 (printed/)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from hyperpod_kit.errors import JobError, RunError
from hyperpod_kit.slurm import control, records
from hyperpod_kit.slurm.job_id import JobId
from tests.support.runner import RecordingRunner

PRINTED: List[Dict[str, Any]] = json.loads((Path(__file__).parent / "printed" / "arrays.json").read_text())
VERSIONS = sorted({str(case["slurm"]) for case in PRINTED})

LAST = JobId("1", "1", "3")
"""The last task of the array 1, which has the array's own number. It waits, the other three run."""


def slurm(version: str, het: bool = False) -> RecordingRunner:
    """Answers as that Slurm did."""
    cases = [case for case in PRINTED if case["slurm"] == version and bool(case.get("het")) == het]
    return RecordingRunner(
        {case["asked"]: (case["code"], case["printed"]) if case["code"] else case["printed"] for case in cases}
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_last_task_is_not_taken_for_its_siblings(version: str) -> None:
    runner = slurm(version)
    assert len(records.query_squeue(runner, "1")) == 4, "to Slurm, the plain number is the whole array"
    for wanted in (LAST, JobId("1"), JobId("", "1", "3")):
        record = control.query_job_record(runner, wanted)
        assert (record["JobId"], record["ArrayTaskId"], record["JobState"]) == ("1", "3", "PENDING")
    assert control.query_job_record(runner, JobId("2", "1", "0"))["JobState"] == "RUNNING"
    assert JobId.from_record(control.query_job_record(runner, JobId("", "1", "0"))) == JobId("2", "1", "0")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_task_that_is_gone_is_forgotten_although_the_array_is_known(version: str) -> None:
    with pytest.raises(RunError) as caught:
        control.query_job_record(slurm(version), JobId("", "1", "9"))
    assert control.is_unknown_job(caught.value)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_its_own_steps_are_killed(version: str) -> None:
    runner = slurm(version)
    assert control.query_running_step_ids(runner, JobId("1"), "hpk-") == [], (
        "steps are named by task: none is of a plain job 1"
    )
    runner.answers["scancel"] = ""
    assert control.kill_steps(runner, JobId("3", "1", "1"), "hpk-") == ["1_1.0"]
    assert runner.calls[-1] == "scancel --signal=KILL 1_1.0"
    runner.answers["squeue --steps --noheader -j 1_3"] = ""
    assert control.kill_steps(runner, LAST, "hpk-") == []


def test_every_order_names_the_task() -> None:
    runner = RecordingRunner({"scontrol": "", "scancel": "", "squeue --steps": "1_3.0 ours.7\n1_1.0 ours.7\n1_3.1 x\n"})
    control.requeue(runner, LAST)
    control.set_comment(runner, LAST, "mark")
    control.signal_steps(runner, LAST, "ours.", "USR1")
    assert runner.calls == [
        "scontrol requeue 1_3",
        "scontrol update jobid=1_3 comment=mark",
        "squeue --steps --noheader -j 1_3 -o %i %j",
        "scancel --signal=USR1 1_3.0",
    ]


def test_several_records_are_never_made_into_one() -> None:
    runner = RecordingRunner(
        {
            "squeue": "JobId=8 ArrayJobId=7 ArrayTaskId=1 JobState=RUNNING\n"
            "JobId=9 ArrayJobId=7 ArrayTaskId=2 JobState=FAILED\n"
        }
    )
    with pytest.raises(JobError, match="Slurm returned 7_1, 7_2 for job 7 "):
        control.query_job_record(runner, JobId("7"))
    twice = RecordingRunner({"squeue": "JobId=7 JobState=RUNNING\nJobId=7 JobState=FAILED\n"})
    with pytest.raises(JobError, match="Slurm returned 7, 7"):
        control.query_job_record(twice, JobId("7"))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_components_of_a_heterogeneous_job(version: str) -> None:
    runner = slurm(version, het=True)
    job = JobId("1", components=("1", "2"))
    assert [record["JobId"] for record in control.query_matching_job_records(runner, job)] == ["1", "2"]
    assert control.query_job_record(runner, job)["HetJobOffset"] == "0"
    runner.answers.update(
        {"squeue --steps --noheader -j 1,2": "1.1 hpk-x\n1.batch batch\n2.1 hpk-x\n3.1 hpk-x\n", "scancel": ""}
    )
    assert control.kill_steps(runner, job, "hpk-") == ["1.1", "2.1"]


@pytest.mark.parametrize(
    ("one", "other", "siblings"),
    [
        (JobId("", "7", "1"), JobId("7", "7", "2"), True),
        (JobId("", "7", "1"), JobId("8", "7", "1"), False),
        (JobId("7"), JobId("7"), False),
        (JobId("", "7", "1"), JobId("9", "9", "2"), False),
    ],
)
def test_siblings(one: JobId, other: JobId, siblings: bool) -> None:
    assert one.is_other_task_of_same_array(other) == siblings
    assert JobId.parse(one.slurm_id).slurm_id == one.slurm_id
