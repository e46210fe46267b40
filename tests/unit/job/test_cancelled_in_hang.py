"""A hung job that is cancelled, on a real Slurm of our own: it comes back where its user has asked for that, and where
the user that it named has cancelled it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.job.program import cli_look
from hyperpod_kit.slurm import cancel_requests
from hyperpod_kit.slurm.job_id import JobId
from tests.support.runner import RecordingRunner
from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm, running
from tests.unit.job.test_real_slurm import MAIN, PYTHON, Work

SILENT = 14.0
"""Seconds, beyond the ten after which a step looks hung."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    with running(more="KillWait=30\n") as cluster:
        yield cluster


@pytest.fixture
def work(slurm: PrivateSlurm) -> Work:
    return Work(slurm)


def hung(work: Work) -> Work:
    """A job whose last rank hangs at step 8 of its first attempt."""
    trainer = ["--steps", "12", "--hang", "8", "--once", str(work.place / "once")]
    work.submit(*trainer, run="--stall never --requeue-after-cancel root")
    until(work.checkpoints, what="checkpoint")
    until((work.place / "once").exists, what="hang")
    time.sleep(SILENT)  # nothing happens that could be waited for
    return work


def sweep(work: Work) -> str:
    return work.slurm.call(PYTHON, "-I", "-S", str(MAIN), "sweep", check=False)


def cancelled(work: Work, code: str) -> None:
    work.state("CANCELLED")
    assert work.detail("ExitCode") == code, (work.place / "out").read_text()


@pytest.mark.rehearsal
@pytest.mark.needs("slurm")
def test_a_hung_job_that_root_cancels_comes_back_with_the_sweep(work: Work) -> None:
    hung(work).slurm.call("scancel", work.id)
    cancelled(work, "85:0")
    assert f"job {work.id} was cancelled by uid 0 while its ranks hung" in sweep(work)
    work.state("COMPLETED")
    first, second = work.events("ended")
    assert (first["class"], second["class"]) == ("cancelled_in_hang", "done") and "no step for" in first["hang"]
    assert work.events("attempt")[1]["from"].startswith("seq-") and work.detail("Restarts") == "1"
    assert sweep(work) == ""


@pytest.mark.rehearsal
@pytest.mark.needs("slurm")
@pytest.mark.full
def test_a_hung_job_that_its_user_cancels_has_ended(work: Work) -> None:
    hung(work).slurm.call("scancel", work.id, as_user=True)
    cancelled(work, "85:0")
    assert sweep(work) == "" and work.slurm.state(work.id) == "CANCELLED"


@pytest.mark.rehearsal
@pytest.mark.needs("slurm")
def test_a_job_at_work_that_root_cancels_has_ended(work: Work) -> None:
    work.submit("--steps", "5000", run="--requeue-after-cancel root")
    until(work.checkpoints, what="checkpoint")
    work.slurm.call("scancel", work.id)
    cancelled(work, "143:0")
    assert work.events("ended")[0]["class"] == "cancelled"
    assert sweep(work) == "" and work.slurm.state(work.id) == "CANCELLED"


ENDED = 1795600000.0


def line(seconds: float, job: str, uid: int) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(ENDED + seconds))
    return f"[{stamp}.189] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId={job} uid {uid}\n"


@pytest.mark.parametrize(
    ("log", "uids"),
    [
        (line(0, "7", 0), {0}),
        (line(-1, "7", 0) + line(0, "8", 1000), {0}),
        (line(-300, "7", 1000) + line(0, "7", 0), {0}),  # `scancel --signal` of before
        (line(0, "7", 0) + line(0, "7", 1000), {0, 1000}),
        (line(0, "77", 0), set()),
        (line(0, "7", 0).replace("[", "x ["), set()),
        (f"error: no partition x {line(0, '7', 0)}", set()),
        ("", set()),
    ],
)
def test_who_has_cancelled_a_job(log: str, uids: set[int]) -> None:
    assert cancel_requests.uids_of_cancel(log, JobId("7"), ENDED) == uids


def test_a_task_is_cancelled_by_its_number_and_by_its_name() -> None:
    task = JobId("13", "11", "2")
    assert cancel_requests.uids_of_cancel(line(0, "11_2", 0) + line(0, "13", 5), task, ENDED) == {0, 5}


RECORD = (
    "JobId=7 JobState=CANCELLED Requeue=1 UserId=1000 BatchHost=n1 NodeList=n1 "
    f"Comment=mine hpk:requeue-after-cancel=0 EndTime={ENDED:.0f} ExitCode=85:0"
)


@pytest.mark.parametrize(
    ("record", "log", "jobs", "problems"),
    [
        (RECORD, line(0, "7", 0), ["7"], 0),
        (RECORD.replace("85:0", "21760"), line(0, "7", 0), ["7"], 0),  # 22.05 prints a wait status
        (RECORD, line(0, "7", 1000), [], 0),
        (RECORD, line(0, "7", 0) + line(0, "7", 1000), [], 0),
        (RECORD, line(0, "8", 0), [], 1),
        (RECORD.replace("=0 ", "=5 "), line(0, "7", 0), [], 0),
        (RECORD.replace("85:0", "143:0"), line(0, "7", 0), [], 0),
        (RECORD.replace("85:0", "0:9"), line(0, "7", 0), [], 0),
        (RECORD.replace("CANCELLED", "COMPLETING"), line(0, "7", 0), [], 0),
        (RECORD.replace("CANCELLED", "TIMEOUT"), line(0, "7", 0), [], 0),
        (RECORD.replace("hpk:", ""), line(0, "7", 0), [], 0),
        (RECORD.replace("=0 ", "=0x "), line(0, "7", 0), [], 0),
    ],
)
def test_which_cancelled_jobs_the_sweep_queues_again(
    tmp_path: Path, record: str, log: str, jobs: list[str], problems: int
) -> None:
    path = tmp_path / "slurmctld.log"
    path.write_text(log)
    answers = {"squeue job": record, "scontrol show config": f"SlurmctldLogFile        = {path}\n"}
    runner = RecordingRunner(answers)
    confirmed, unknown = cli_look.confirm_cancels(runner, cli_look.find_cancelled_in_hang(cli_look.jobs(runner)))
    assert ([orphan.job_id for orphan in confirmed], len(unknown)) == (jobs, problems)


def test_without_a_log_a_cancelled_job_stays_so() -> None:
    runner = RecordingRunner({"squeue job": RECORD, "scontrol show config": "SlurmctldLogFile = (null)\n"})
    confirmed, [unknown] = cli_look.confirm_cancels(runner, cli_look.find_cancelled_in_hang(cli_look.jobs(runner)))
    assert confirmed == [] and "stays cancelled: slurmctld has no log of its own" in unknown
