"""The root hangs on one host alone: a thread of `job run` gives the job back; a rank's thread tells `job run`."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest

from hyperpod_kit.job.own_node import OwnNode, held_alone
from hyperpod_kit.job.storage import RootWatch
from hyperpod_kit.slurm.environment import JobEnvironment
from tests.unit.slurm.recording import RecordingRunner

from .private_slurm import wait_until

JOB = JobEnvironment.read({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"})


def shown(**reasons: str) -> str:
    return "\n".join(f"NodeName={name} State=IDLE Reason={reason} [root@2026-01-01T00:00:00]"
                     for name, reason in reasons.items())


@pytest.mark.parametrize(("reasons", "alone"), [
    ({"n1": "hyperpod-kit:mount:fsx:hung", "n2": "", "n3": ""}, True),
    ({"n1": "hyperpod-kit:mount:fsx:hung", "n2": ""}, True),
    ({"n1": "hyperpod-kit:mount:fsx:hung", "n2": "hyperpod-kit:mount:fsx:hung", "n3": ""}, False),  # an outage
    ({"n1": "a fan", "n2": "", "n3": ""}, False),
    ({"n1": "", "n2": "hyperpod-kit:mount:fsx:hung", "n3": ""}, False)])
def test_only_a_node_that_is_drained_for_its_mount_is_left(reasons: dict[str, str], alone: bool) -> None:
    assert held_alone(RecordingRunner({"scontrol -o show node": shown(**reasons)}), "n1") is alone


def test_without_slurmctld_nothing_is_concluded() -> None:
    assert not held_alone(RecordingRunner(), "n1")


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where the health timer would say that it doubts a mount."""
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def test_the_job_is_given_back_once_and_only_while_the_root_is_away(tmp_path: Path, marks: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    runner = RecordingRunner({"scontrol -o show node": shown(n1="hyperpod-kit:mount:fsx:hung", n2=""),
                              "scontrol requeue 7": ""})
    with OwnNode(runner, JOB, "n1", str(state), marks=str(marks), look=0.01, patience=0.05):
        (marks / "data").write_text("hung: another mount\n")
        threading.Event().wait(0.3)
        assert runner.calls == [], "the root itself answers"
        state.rmdir()
        wait_until("requeue", lambda: "scontrol requeue 7" in runner.calls)
        threading.Event().wait(0.2)
    assert runner.calls == ["scontrol -o show node", "scontrol requeue 7"]


def test_a_rank_tells_of_a_root_that_goes_away_and_comes_back(tmp_path: Path, marks: Path) -> None:
    state, told = tmp_path / "state", queue.Queue[bool]()
    watch = RootWatch(str(state), told.put, marks=str(marks), look=0.01)
    with pytest.raises(queue.Empty):
        told.get(timeout=0.2)  # no check doubts a mount: nobody is asked
    (marks / "fsx").write_text("hung\n")
    assert told.get(timeout=10) is True
    state.mkdir()
    assert told.get(timeout=10) is False
    watch.stop()
