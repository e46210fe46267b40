"""What is wrong with a step is told to HyperPod, and what it does about it is waited for, with a bound."""

from __future__ import annotations

from typing import Dict, List, Sequence
from unittest import mock

import pytest

from hyperpod_kit.job.step.step_retry import REPLACEMENT, UNHEARD, RetryAnswer, StepRetry
from hyperpod_kit.slurm.job_id import JobId
from tests.support.clock import FakeClock

ASKED = "[Auto Resume] Info: JobID: 7 StepID: 0 Initiating communication with cluster agent to diagnose health of nodes"
RETRIED = "[Auto Resume] Info: JobID: 7 StepID: 0 Retrying step. Attempt number: 1"


class Slurm:
    """The steps that slurmctld has, and those that were killed."""

    def __init__(self) -> None:
        self.steps: List[str] = ["7.0"]
        self.killed: List[str] = []

    def running(self, runner: object, job: JobId, prefix: str) -> List[str]:
        return list(self.steps)

    def kill(self, runner: object, job: JobId, prefix: str) -> List[str]:
        self.killed += self.steps
        return list(self.steps)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm()
    monkeypatch.setattr("hyperpod_kit.slurm.control.query_running_step_ids", found.running)
    monkeypatch.setattr("hyperpod_kit.slurm.control.kill_steps", found.kill)
    return found


class World:
    def __init__(self, readable: bool = True) -> None:
        self.clock = FakeClock()
        self.log = mock.Mock(readable=readable)
        self.noted: List[Dict[str, object]] = []
        self.retry = StepRetry(
            mock.Mock(), JobId("7", "7"), mock.Mock(), self.log, lambda **row: self.noted.append(row), clock=self.clock
        )
        self.says()

    def says(self, *lines: str) -> int:
        self.log.news.return_value = list(lines)
        heard = self.retry.record_messages_and_count_relaunches()
        self.log.news.return_value = []
        return heard

    def after(self, seconds: float, nodes: Sequence[str] = ()) -> RetryAnswer:
        self.clock.now += seconds
        return self.retry.end_step_or_wait_for_retry("no progress for 60 s", nodes)


def test_a_step_that_does_not_move_is_ended_once_and_srun_is_left_to_hyperpod(slurm: Slurm) -> None:
    world = World()
    assert world.after(6) is RetryAnswer.WAIT and slurm.killed == ["7.0"] and world.retry.ended
    assert world.after(6) is RetryAnswer.WAIT and slurm.killed == ["7.0"]  # Slurm still has it
    world.says(ASKED)
    slurm.steps = []
    assert world.after(REPLACEMENT - 60) is RetryAnswer.WAIT  # a replacement takes half an hour
    assert world.says(RETRIED) and not world.retry.ended
    assert [row["words"] for row in world.noted] == [ASKED, RETRIED]


def test_a_hyperpod_that_says_nothing_is_not_waited_for_like_one_at_work(slurm: Slurm) -> None:
    world = World()
    assert world.after(6) is RetryAnswer.WAIT
    assert world.after(UNHEARD - 10) is RetryAnswer.WAIT
    assert world.after(11) is RetryAnswer.END


def test_one_whose_words_cannot_be_read_is(slurm: Slurm) -> None:
    world = World(readable=False)
    assert world.after(6) is RetryAnswer.WAIT
    assert world.after(UNHEARD + 60) is RetryAnswer.WAIT
    assert world.after(REPLACEMENT) is RetryAnswer.END


def test_a_replacement_has_a_bound(slurm: Slurm) -> None:
    world = World()
    world.says(ASKED)
    slurm.steps = []
    assert world.after(6) is RetryAnswer.WAIT
    assert world.after(REPLACEMENT + 1) is RetryAnswer.END and not slurm.killed


def test_a_step_that_hyperpod_has_started_gets_the_time_of_a_start(slurm: Slurm) -> None:
    """Also where its words are not to be had: the step is another one."""
    world = World(readable=False)
    slurm.steps = []
    assert world.after(6) is RetryAnswer.WAIT  # while it replaced a node, of its own accord
    slurm.steps = ["7.1"]
    assert world.after(1000) is RetryAnswer.LAUNCHED and not slurm.killed
    assert world.after(6) is RetryAnswer.WAIT and slurm.killed == ["7.1"]


def test_slurmctld_is_not_asked_at_every_turn(slurm: Slurm) -> None:
    world = World()
    world.after(6)
    slurm.steps = ["7.1"]
    assert world.after(0.1) is RetryAnswer.WAIT and slurm.killed == ["7.0"]
