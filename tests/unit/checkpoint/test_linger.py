"""When an agent leaves after its trainer: never what it works at, and what others work at not before its time is over.

The workers are those of tests.property.world: a job is done when the test says so.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hyperpod_kit.checkpoint.agent.process import lifetime
from hyperpod_kit.checkpoint.agent.process.agent_events import (
    ClearResult,
    CommitCheckResult,
    TrainerDisconnected,
    WriteResult,
)
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import Close
from hyperpod_kit.checkpoint.repository import retention, selection
from hyperpod_kit.environment import HPK_AGENT_LINGER
from tests.property.world import Worker, World


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """`clock[0]`: the seconds that an agent's time to linger is measured with."""
    now = [0.0]
    monkeypatch.setattr(lifetime, "time", SimpleNamespace(monotonic=lambda: now[0]))
    yield now


def save(world: World) -> None:
    for rank in world.agents:
        world.begin_save(rank)
        world.finish_save(rank)


def handle_events(world: World) -> None:
    """Until no agent has one, or all have left."""
    while waiting := [rank for rank, agent in world.agents.items() if not agent.events.empty()]:
        world.step(waiting[0])


def jobs_until_all_have_left(world: World) -> Iterator[tuple[int, Worker]]:
    """Whose turn it is, again and again: an agent that is not done has work."""
    while True:
        handle_events(world)
        if not world.agents:
            return
        turn = next(world.workers(), None)
        assert turn is not None, f"the agents of ranks {sorted(world.agents)} stay, and nothing is left to do"
        yield turn


def fail_for_want_of_room(worker: Worker) -> None:
    result, key, _ = worker.jobs.popleft()
    worker.post(result(key, None, "No space left on device", errno.ENOSPC))


@pytest.mark.parametrize("end", [TrainerDisconnected, Close])
@pytest.mark.parametrize("from_earlier_start", [False, True], ids=["own", "of an earlier start"])
@pytest.mark.parametrize("is_full", [False, True], ids=["room", "no room"])
def test_nothing_that_is_worked_at_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: type, from_earlier_start: bool, is_full: bool
) -> None:
    monkeypatch.setenv(HPK_AGENT_LINGER, "-1")  # it is over at once
    world = World(tmp_path, 1)
    world.start()
    handle_events(world)
    save(world)
    handle_events(world)
    if from_earlier_start:
        world.kill_trainers()
        assert world.start() is not None
        handle_events(world)
    agent = world.agents[0]
    if end is Close:
        world._say(0, Close())
    else:
        world.kill_trainers()
    kinds = set()
    for _, worker in jobs_until_all_have_left(world):
        kind = worker.jobs[0][0]
        kinds.add(kind)
        if is_full and kind is WriteResult:
            fail_for_want_of_room(worker)
        else:
            worker.work()
    assert (CommitCheckResult in kinds, ClearResult in kinds) == (from_earlier_start, is_full)
    if is_full:
        assert [capture.state_text for capture in agent.captures] == ["failed"]
    else:
        assert [capture.state_text for capture in agent.captures] == ["durable"]
        assert selection.newest_valid(world.root).seq == 1
    world.end()


def test_a_rank_that_found_no_room_is_there_when_there_is_room(tmp_path: Path, clock: list[float]) -> None:
    """Though it wrote for longer than an agent lingers: the time begins when nothing happens any more."""
    world = World(tmp_path, 2)
    world.start()
    handle_events(world)
    save(world)
    world.kill_trainers()
    cleared = False
    for rank, worker in jobs_until_all_have_left(world):
        clock[0] += 500.0
        kind, key, _ = worker.jobs[0]
        if kind is WriteResult and rank == 1 and not cleared:
            fail_for_want_of_room(worker)
        elif kind is ClearResult:
            worker.jobs.popleft()
            worker.post(ClearResult(key, retention.Applied(("older",), ()), "", 0))
            cleared = True
        else:
            worker.work()
    assert cleared and selection.newest_valid(world.root).seq == 1
    world.end()
