"""Which cancelled jobs the sweep queues again: those that asked for it, and that the right user has cancelled."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hyperpod_kit.job.program import cli_look
from hyperpod_kit.job.step.step_report import StepReport
from hyperpod_kit.job.step.step_supervision import SILENCE_KEPT, SilenceWatch
from hyperpod_kit.slurm import cancel_requests
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.slurm.phase import Phase
from tests.support.clock import FakeClock
from tests.support.runner import RecordingRunner

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


def at_step(step: int, slowest: float) -> dict[int, StepReport]:
    return {0: StepReport(0, "n1", step, Phase.STEP, 0, slowest)}


def looked_at(watch: SilenceWatch, clock: FakeClock, seconds: int, reports: dict[int, StepReport]) -> str:
    """Why the step looks hung after so many seconds, with a look in each."""
    for _ in range(seconds):
        clock.sleep(1.0)
        watch.look(reports)
    return watch.reason


@pytest.mark.parametrize(("slowest", "seconds"), [(0.5, 10), (18.0, 54)])
def test_a_step_looks_hung_after_ten_seconds_and_three_slow_steps(tmp_path: Path, slowest: float, seconds: int) -> None:
    clock = FakeClock()
    watch = SilenceWatch(str(tmp_path), is_needed=True, clock=clock)
    assert looked_at(watch, clock, seconds, at_step(7, slowest)) == ""
    assert "no step for" in looked_at(watch, clock, 2, at_step(7, slowest))
    # The ranks are ended by the cancel before `job run` hears of it.
    assert "no step for" in looked_at(watch, clock, int(SILENCE_KEPT), {})
    assert looked_at(watch, clock, 2, at_step(8, slowest)) == ""


def test_a_job_that_did_not_ask_is_not_watched(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = SilenceWatch(str(tmp_path), is_needed=False, clock=clock)
    assert looked_at(watch, clock, 1000, at_step(7, 0.5)) == "" and watch.seconds_until_next_look is None
