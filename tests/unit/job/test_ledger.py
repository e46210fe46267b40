from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hyperpod_kit.errors import JobError
from hyperpod_kit.job.records import life
from hyperpod_kit.job.records.ledger import Ledger, read
from hyperpod_kit.job.status.attempt_table import table
from hyperpod_kit.job.status.timeline import attempts, totals


def test_rows_of_other_jobs_are_not_ours(tmp_path: Path) -> None:
    Ledger(str(tmp_path), "7", 0, clock=lambda: 1.0).append("attempt", attempt="7.0.0")
    Ledger(str(tmp_path), "8", 1).append("attempt", attempt="8.1.0")
    assert [row["attempt"] for row in Ledger(str(tmp_path), "7", 1).valid_rows_of_this_job()] == ["7.0.0"]
    assert read(str(tmp_path / "attempts.jsonl"))[0] == {
        "t": 1.0,
        "job": "7",
        "restart": 0,
        "event": "attempt",
        "attempt": "7.0.0",
    }


def test_a_job_number_that_comes_again_is_another_job(tmp_path: Path) -> None:
    """Slurm counts from 1 again when its controller has lost its state; the root and its ledger are still there."""
    state = tmp_path / ".hpk"
    state.mkdir()
    first = Ledger(str(state), "7", 0, born="aaaaaa")
    first.append("attempt", attempt=first.name(0))
    requeued = Ledger(str(state), "7", 1, born="bbbbbb")
    assert [row["attempt"] for row in requeued.valid_rows_of_this_job()] == ["7-aaaaaa.0.0"]
    assert requeued.name(0) == "7-aaaaaa.1.0"
    requeued.append("gave_up", why="three failures")
    again = Ledger(str(state), "7", 0, born="cccccc")
    assert again.valid_rows_of_this_job() == [] and again.name(0) == "7-cccccc.0.0"
    again.append("requeue", why="a node is gone")
    assert [row["event"] for row in Ledger(str(state), "7", 1, born="dddddd").valid_rows_of_this_job()] == ["requeue"]
    assert [row["event"] for row in first.valid_rows_of_this_job()] == ["attempt", "gave_up"]
    assert [one.then for one in attempts(str(tmp_path), "7")] == [
        "",
        "gave_up: three failures",
        "requeue: a node is gone",
    ]


def test_one_run_of_a_batch_script_has_one_name(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        ours, theirs = ({"SLURM_TASK_PID": str(pid), "SLURMD_NODENAME": "n1"} for pid in (os.getpid(), other.pid))
        assert life.id_of_batch_script_run(ours) == life.id_of_batch_script_run(ours) != ""
        assert (
            life.id_of_batch_script_run(theirs)
            != life.id_of_batch_script_run(ours)
            != life.id_of_batch_script_run({**ours, "SLURMD_NODENAME": "n2"})
        )
        other.kill()
    assert (
        life.id_of_batch_script_run({})
        == life.id_of_batch_script_run({"SLURM_TASK_PID": "none"})
        == life.id_of_batch_script_run(theirs)
        == ""
    )


def test_a_torn_last_line_costs_nothing_else(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "7", 0)
    ledger.append("attempt", attempt="7.0.0")
    with open(ledger.path, "a") as file:
        file.write('{"t": 3, "job"')
    ledger.append("ended", attempt="7.0.0", **{"class": "crash"})
    assert [row["event"] for row in ledger.valid_rows_of_this_job()] == ["attempt", "ended"]


def test_a_ledger_that_cannot_be_written_stops_the_job(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot write"):
        Ledger(str(tmp_path / "missing"), "7", 0).append("attempt")


def test_the_timeline(tmp_path: Path) -> None:
    state = tmp_path / ".hpk"
    state.mkdir()
    ledger = Ledger(str(state), "7", 0)
    for attempt, kind in (("7.0.0", "crash"), ("7.0.1", "node_lost")):
        ledger.append("attempt", attempt=attempt, step=5, **{"from": "seq"})
        ledger.append("ended", attempt=attempt, code=1, seconds=2.0, **{"class": kind})
    ledger.append("requeue", why="a node is gone")
    rows = attempts(str(tmp_path))
    assert [row.kind for row in rows] == ["crash", "node_lost"]
    assert rows[-1].then == "requeue: a node is gone"
    assert len(table(rows, totals(rows, 0.0)).splitlines()) == 4
    assert attempts(str(tmp_path), "7") == rows and attempts(str(tmp_path), "8") == []
    assert attempts(str(tmp_path / "nothing")) == []
