"""Two real processes over gloo: killed wherever it hurts, they end with the weights of an undisturbed run."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.repository import catalog, selection  # noqa: E402

pytestmark = pytest.mark.distributed
STEPS = 24  # as the fixture `undisturbed`


@pytest.mark.parametrize("agents_too", [False, True], ids=["trainers", "trainers-and-agents"])
def test_killed_twice_and_resumed_bit_identical(job, undisturbed: str, agents_too: bool) -> None:
    mine = job("killed")
    dice = random.Random(agents_too)
    for goal in (5, 13):
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


@pytest.mark.parametrize("place", ["capture.tensor@8", "capture.done@2"])
def test_killed_in_the_middle_of_a_save(job, undisturbed: str, place: str) -> None:
    mine = job("mid")
    mine.start(STEPS, "--save-every", "4", rank1_HPK_FAILPOINT=place)
    mine.until("death of rank 1", lambda: mine.ranks[1].poll() == -9)
    mine.kill()
    mine.start(STEPS, "--save-every", "4")
    assert mine.weights() == undisturbed
    got = mine.find("restored")
    if place == "capture.tensor@8":  # in mid-copy of the first save: nothing was ever whole
        assert got["kind"] == "Fresh"
    else:
        assert got["step"] in (3, 7)
    assert os.listdir(mine.shm) == []


def test_an_agent_killed_before_the_commit_costs_nothing(job, undisturbed: str) -> None:
    mine = job("agent")
    mine.start(STEPS, "--save-every", "4", HPK_FAILPOINT="commit.before_manifest@2")
    mine.until("death of the agent", lambda: "failed" in str([e.get("save") for e in mine.events()]))
    mine.kill()
    mine.kill_agents()
    assert selection.newest_valid(str(mine.root)).step == 3
    mine.start(STEPS, "--save-every", "4")
    assert mine.weights() == undisturbed
    got = mine.find("restored")
    assert (got["step"], got["tier"]) in [(7, "memory"), (11, "memory")], got
    found = catalog.attempts(str(mine.root))
    assert not all(entry.committed for entry in found) and found[0].name.step == 23


def test_damaged_storage_is_walked_back_by_all_ranks_and_never_from_scratch(job, undisturbed: str) -> None:
    mine = job("damaged")
    mine.start(12, "--save-every", "4")
    mine.weights()
    newest, *older = catalog.attempts(str(mine.root))

    def flip(attempt: str, name: str) -> None:
        path = Path(mine.root, attempt, name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    flip(newest.attempt, "shard-00001.safetensors")
    mine.start(STEPS, "--save-every", "4")
    assert mine.weights() == undisturbed
    got = mine.find("restored")
    assert got["attempt"] == older[0].attempt and got["step"] == 7
    ((rejected, why),) = got["rejected"]
    assert rejected == newest.attempt and "rank 1: shard-00001.safetensors bytes" in why

    for entry in catalog.attempts(str(mine.root)):
        flip(entry.attempt, "MANIFEST.json")
    mine.start(STEPS)
    assert mine.wait() == [1, 1]
    assert "no valid checkpoint" in mine.log(1).read_text()
    assert not [event for event in mine.events() if "loss" in event]


def test_another_number_of_ranks_restores_the_same_state(job) -> None:
    mine = job("resize")
    mine.start(4, "--save-every", "4")
    saved = mine.weights()
    mine.start(4, world=1)
    assert mine.weights() == saved
    assert mine.find("restored")["step"] == 3
    mine.start(4, world=3)
    assert mine.weights() == saved
    assert os.listdir(mine.shm) == []
