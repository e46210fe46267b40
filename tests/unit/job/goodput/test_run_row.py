"""What `job run` writes of its run, and what Slurm has a job as, of what a squeue prints that is asked for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Dict

import pytest

from hyperpod_kit.job.goodput import run_log, standing, time_rows
from hyperpod_kit.job.goodput.job_time import JobStanding, JobState, RunLog, account
from hyperpod_kit.job.goodput.time_table import table_of
from hyperpod_kit.job.step.scheduler import SlurmScheduler
from hyperpod_kit.slurm.environment import JobEnvironment
from tests.support.runner import RecordingRunner

QUEUED = "squeue --local --all --noheader --states=all -j 7 -o %V"
ENVIRONMENT = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}


def noted(state: Path, record: str, more: Dict[str, str]) -> time_rows.RunRow:
    env = {**ENVIRONMENT, **more}
    runner = RecordingRunner({"squeue job 7": record, QUEUED: "1790000000\n"})
    query = SlurmScheduler(runner).query_record_and_queued_at
    run_log.append_run_row(str(state), "", JobEnvironment.read(env), query, env)
    row = time_rows.read_run(str(state), time_rows.run_name("7", "", 0))
    assert row is not None
    return row


def test_a_run_is_written_with_its_start_its_user_and_its_partition(tmp_path: Path) -> None:
    record = "JobId=7 JobState=RUNNING User=ana Partition=gpu StartTime=1790000060 AllocTRES=cpu=2,node=2,gres/gpu=16"
    row = noted(tmp_path, record, {})
    assert (row.queued, row.started) == (1790000000.0, 1790000060.0)
    assert (row.user, row.partition, row.gpus) == ("ana", "gpu", 16)


def test_gpus_are_counted_where_slurm_tracks_none(tmp_path: Path) -> None:
    """Without slurmdbd no Slurm counts GPUs in a job's resources."""
    row = noted(tmp_path, "JobId=7 JobState=RUNNING AllocTRES=cpu=2,node=2", {"SLURM_GPUS_ON_NODE": "4"})
    assert row.gpus == 8


@pytest.mark.parametrize(
    ("record", "state", "since"),
    [
        ("JobState=COMPLETED EndTime=1790000500", JobState.OVER, 1790000500.0),
        ("JobState=PENDING SubmitTime=1790000300", JobState.WAITS, 1790000300.0),
        ("JobState=RUNNING EndTime=1890000000", JobState.RUNS, 0.0),
    ],
)
def test_what_slurm_has_a_job_as(record: str, state: JobState, since: float) -> None:
    found = standing.query_job_standing_or_none(RecordingRunner({"squeue job 7": f"JobId=7 {record}"}), "7")
    assert found is not None and (found.state, found.since) == (state, since)


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (JobStanding(JobState.RUNS, 0.0, 0, 1790000061.0), True),
        (JobStanding(JobState.RUNS, 0.0, 0, 1790500000.0), False),
        (JobStanding(JobState.RUNS, 0.0, 1, 1790500000.0), True),
        (JobStanding(JobState.WAITS, 1790500000.0, 0), False),
        (JobStanding(JobState.WAITS, 1790500000.0, 1), True),
        (JobStanding(JobState.OVER, 1790600000.0, 0, 1790500000.0), False),
    ],
)
def test_another_job_of_the_same_number_is_not_this_one(now: JobStanding, same: bool, tmp_path: Path) -> None:
    """Slurm counts from 1 again after it has lost its state; the time of a job of last month does not grow then."""
    row = noted(tmp_path, "JobId=7 JobState=RUNNING StartTime=1790000060", {})
    run = RunLog(("7", "", 0), row.started, row.started + 500.0, row=row)
    assert now.may_describe_job_of_run(run) is same
    whole = table_of(account([run], "7", 1791000000.0, now).pieces).total_seconds
    assert (whole > 1000.0) is same or now.state is JobState.OVER


def test_a_time_that_comes_twice_is_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the night in which summer ends, 2:30 is two moments for whoever reads a clock."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    moments = (1792888200, 1792891800)
    assert len({time.strftime("%H:%M", time.localtime(moment)) for moment in moments}) == 1
    rows = [
        noted(tmp_path / str(moment), f"JobId=7 JobState=RUNNING StartTime={moment}", {}).started for moment in moments
    ]
    monkeypatch.undo()
    time.tzset()
    assert rows == [float(moment) for moment in moments]
