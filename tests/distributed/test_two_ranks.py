"""Two real processes over gloo: killed wherever it hurts, they end with the weights of an undisturbed run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.agent.shm import lock
from hyperpod_kit.checkpoint.repository.records import catalog
from tests.support.rows import full

pytestmark = pytest.mark.distributed
STEPS = 24  # as the fixture `undisturbed`


@pytest.mark.full
def test_killed_twice_and_resumed_bit_identical(job, undisturbed: str) -> None:
    mine = job("killed")
    dice = random.Random(11)
    for goal, agents_too in ((5, False), (13, True)):
        mine.start(STEPS, "--save-every", "4")
        mine.reached(goal + dice.randrange(4))
        mine.kill()
        if agents_too:
            mine.kill_agents()
    mine.start(STEPS, "--save-every", "4")
    assert mine.weights() == undisturbed
    got = mine.find("restored")
    assert got["kind"] == "Restored" and got["step"] >= 11 and got["step"] % 4 == 3, got
    assert os.listdir(mine.shm) == []


@pytest.mark.full
def test_told_to_stop_it_saves_between_two_saves_and_asks_to_run_again(job, undisturbed: str) -> None:
    mine = job("told")
    mine.start(STEPS, "--save-every", "100")
    mine.reached(4)
    pid = mine.ranks[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGUSR1)
    assert mine.wait() == [75, 75]
    assert os.listdir(mine.shm) == []
    stopped = mine.find("stopped")
    mine.start(STEPS)
    assert mine.weights() == undisturbed
    assert mine.find("restored")["step"] == stopped["step"] and stopped["checkpoints_durable"]


@pytest.mark.full
@pytest.mark.parametrize("place", ["capture.tensor@1", "capture.done@2"])
def test_killed_in_the_middle_of_a_save(job, undisturbed: str, place: str) -> None:
    mine = job("mid")
    mine.start(STEPS, "--save-every", "4", rank1_HPK_FAILPOINT=place)
    mine.until("death of rank 1", lambda: mine.ranks[1].exitcode == -9)
    mine.kill()
    mine.start(STEPS, "--save-every", "4")
    assert mine.weights() == undisturbed
    got = mine.find("restored")
    if place == "capture.tensor@1":  # in mid-copy of the first save: nothing was ever whole
        assert got["kind"] == "Fresh"
    else:
        assert got["step"] in (3, 7)
    assert os.listdir(mine.shm) == []


@pytest.mark.full
def test_an_agent_that_dies_is_started_again_and_the_run_goes_on(job, undisturbed: str) -> None:
    """Rank 0's, which the other one then finds again."""
    mine = job("agent")
    mine.start(STEPS, "--save-every", "4", "--on-busy", "wait", HPK_FAILPOINT="commit.before_manifest@2")
    assert mine.weights() == undisturbed
    assert any("has replaced it" in mine.log(rank).read_text() for rank in (0, 1))
    assert os.listdir(mine.shm) == []
    found = catalog.list_checkpoints(str(mine.root))
    assert [entry.name.step for entry in found if entry.committed] == [23, 19, 15]


def test_an_agent_whose_coordinator_died_first_does_not_linger(job) -> None:
    """A whole machine dies while the other one still trains: nobody must wait for the second one's agent."""
    mine = job("orphan")
    mine.start(1000, "--save-every", "4")
    mine.until("a checkpoint", lambda: catalog.newest_committed(str(mine.root)))
    first = lock.read_agent_and_trainer(str(next(mine.shm.glob("*-00000.lock"))))
    mine.ranks[0].kill()
    assert first is not None
    os.kill(first[0].pid, signal.SIGKILL)
    mine.ranks[1].join(10)
    mine.kill()
    end = time.monotonic() + 10  # it would linger for 20 s
    while mine.agents() and time.monotonic() < end:
        time.sleep(0.05)
    assert mine.agents() == []


def test_damaged_storage_is_walked_back_by_all_ranks_and_never_from_scratch(
    job, calm: tuple[Path, str], undisturbed: str
) -> None:
    mine = job("damaged")
    shutil.copytree(calm[0], mine.root)
    newest, *older = catalog.list_checkpoints(str(mine.root))

    def flip(attempt: str, name: str) -> None:
        path = Path(mine.root, attempt, name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    flip(newest.checkpoint_id, "shard-00001.safetensors")
    mine.start(STEPS, "--save-every", "4")
    assert mine.weights() == undisturbed
    got = mine.find("restored")
    assert got["checkpoint_id"] == older[0].checkpoint_id and got["step"] == 19
    ((rejected, why),) = got["rejected"]
    assert rejected == newest.checkpoint_id and "rank 1: shard-00001.safetensors bytes" in why

    for entry in catalog.list_checkpoints(str(mine.root)):
        flip(entry.checkpoint_id, "MANIFEST.json")
    mine.start(STEPS)
    assert mine.wait() == [1, 1]
    assert "no valid checkpoint" in mine.log(1).read_text()
    assert not [event for event in mine.events() if "loss" in event]


@pytest.mark.parametrize("world", [*full(1), 3])
def test_another_number_of_ranks_restores_the_same_state(job, calm: tuple[Path, str], world: int) -> None:
    mine = job("resize")
    shutil.copytree(calm[0], mine.root)
    mine.start(STEPS, world=world)
    assert mine.weights() == calm[1]
    assert mine.find("restored")["step"] == STEPS - 1
    assert os.listdir(mine.shm) == []
