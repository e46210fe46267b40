"""How squeue is asked for records of jobs, and what is made of its answer. With a real queue: tests/hostile."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperpod_kit.errors import RunError
from hyperpod_kit.job.program import cli_look
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.slurm import records
from tests.support.runner import RecordingRunner


def test_what_stands_between_the_fields_is_on_no_command_line_and_never_the_same(tmp_path: Path) -> None:
    """While squeue runs, its command line can be read by every user, and a comment changed."""
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/argv\necho "$SQUEUE_FORMAT2" >>{tmp_path}/env\n')
    squeue.chmod(0o755)
    for _ in range(2):
        assert records.query_squeue(LocalRunner(), squeue=str(squeue)) == []
    one, other = (tmp_path / "env").read_text().split()
    assert one != other and one.startswith("JobID:0@") and len(one.partition(",")[0]) > 32
    assert "@" not in (tmp_path / "argv").read_text()


@pytest.mark.parametrize(
    "printed", ["JobID", "7@m@", "7@m@x\n8@m@x", "@m@" * 15, "x@m@" * 15, ("7" + "@m@" * 15) * 2 + "8"]
)
def test_what_is_no_answer_is_no_record(printed: str) -> None:
    assert records.split_records(printed, "@m@") is None


def test_an_answer_that_is_not_understood_is_an_error_and_not_an_empty_queue() -> None:
    with pytest.raises(RunError, match="did not print the requested fields"):
        records.query_squeue(RecordingRunner({"squeue job": "7@mark@"}))


def test_a_record_that_cannot_be_judged_costs_no_other_job_its_requeue() -> None:
    runner = RecordingRunner(
        {
            "squeue job": """\
JobId=1 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=a NodeList=b[
JobId=2 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=a NodeList=b[0-4294967295]
JobId=3 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=a NodeList=b"""
        }
    )
    found, problems = cli_look.find_orphans(cli_look.jobs(runner))
    assert [one.job_id for one in found] == ["3"]
    assert [problem.partition(":")[0] for problem in problems] == ["job 1", "job 2"]
