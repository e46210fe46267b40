"""Saves to memory beside saves to storage: the manager with its real agents, and kills at random steps."""

from __future__ import annotations

import datetime
import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Fresh, Manager, Restored, State  # noqa: E402
from hyperpod_kit.checkpoint.agent.flush import flush  # noqa: E402
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots  # noqa: E402
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState  # noqa: E402
from hyperpod_kit.checkpoint.ranks.collectives import Ranks  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from hyperpod_kit.checkpoint.saves.save_schedule import Cadences  # noqa: E402
from hyperpod_kit.job.status import saves  # noqa: E402
from tests.support.wait import until  # noqa: E402
from tests.unit.checkpoint.agent_run import abandon  # noqa: E402
from tests.unit.checkpoint.test_manager import disown  # noqa: E402

PROGRAMS = Path(__file__).resolve().parents[3] / "lab/programs"


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


def state_of(step: int) -> State:
    return State(extra={"weights": torch.full((5000,), float(step)), "at": [step]})


def committed(root: str) -> list[int]:
    return [entry.name.step for entry in catalog.iter_checkpoints_newest_first(root) if entry.committed]


def test_with_two_cadences_a_save_is_due_at_either_and_goes_to_storage_at_the_longer_one() -> None:
    cadences = Cadences(10, 25, Ranks(None))
    found = {step: cadences.due(step) for step in range(100)}
    assert [step for step, tier in found.items() if tier == "storage"] == [24, 49, 74, 99]
    assert [step for step, tier in found.items() if tier == "memory"] == [9, 19, 29, 39, 59, 69, 79, 89]
    assert {Cadences(10, None, Ranks(None)).due(step) for step in range(9)} == {None}
    assert Cadences(10, None, Ranks(None)).due(9) == "storage"
    day = datetime.timedelta(days=1)
    assert [Cadences(2, day, Ranks(None)).due(step) for step in range(4)] == [None, "memory", None, "memory"]


@pytest.mark.parametrize(
    "given", [(None, 250), (10, 5), (10, 0), (10, datetime.timedelta()), (0, 10)], ids=lambda given: str(given)
)
def test_cadences_that_cannot_be_meant_are_refused(given: Any) -> None:
    with pytest.raises(ValueError):
        Cadences(given[0], given[1], Ranks(None))


def test_what_is_for_memory_stays_there_until_a_newer_one_has_its_place_and_close_saves_the_newest(root: str) -> None:
    with Manager(root, every=1, storage_every=3) as manager:
        assert isinstance(manager.restore(state_of(-1)), Fresh)
        handles = []
        for step in range(5):
            handle = manager.step(step, state_of(step))
            assert handle is not None and handle.wait(timeout=60), handle
            handles.append(handle)
        assert [handle.tier for handle in handles] == ["memory", "memory", "storage", "memory", "memory"]
        assert committed(root) == [2]
        until(lambda: handles[3].final, what="a newer one in its place")
        assert handles[0].state == handles[3].state == "dropped" and "its place in memory" in str(handles[0].reason)
        assert handles[0].wait() and handles[0].wait("sealed") and not handles[0].wait("durable")
        assert handles[4].state == "sealed"
    assert committed(root) == [4, 2] and handles[4].state == "durable"
    said = saves.describe_save_status(saves.read_save_status(root), time.time())
    assert len(said) == 1 and said[0].startswith("newest durable: step 4, ") and "a capture in memory" in said[0]
    state = state_of(-1)
    with Manager(root) as manager:
        got = manager.restore(state)
    assert isinstance(got, Restored) and (got.step, got.tier) == (4, "storage")
    assert os.listdir(shm_paths.shared_memory_root()) == []


def test_a_manager_without_a_longer_cadence_is_as_it_was(root: str) -> None:
    manager = Manager(root, every=2)
    manager.restore(state_of(-1))
    for step in range(4):
        handle = manager.step(step, state_of(step))
        assert handle is None or (handle.tier == "storage" and handle.wait(timeout=60))
    assert committed(root) == [3, 1] and len(shm_slots.own_slot_names(shm_paths.shared_memory_root())) == 2
    assert manager.close()
    with pytest.raises(ValueError, match="tier is 'disk'"):
        Manager(root).save(4, state_of(4), tier="disk")  # type: ignore[arg-type]


def test_a_trainer_that_dies_leaves_the_newest_to_its_agent(root: str) -> None:
    manager = Manager(root, slots=3)  # the slot of what was overtaken is free a moment after that is said
    manager.restore(state_of(-1))
    for step in range(3):
        assert manager.save(step, state_of(step), tier="memory").wait(timeout=60)
    assert committed(root) == []
    manager._agent.detach()  # what the kernel does when the trainer is killed
    until(lambda: committed(root) == [2], what="the newest on storage, and no other")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_brings_the_newest_to_storage_while_training_goes_on(root: str, number: signal.Signals) -> None:
    manager = Manager(root, slots=3)
    state = state_of(0)
    manager.restore(state_of(-1))
    handle = manager.save(0, state, tier="memory")
    assert handle.wait(timeout=60)
    os.kill(manager._agent.pid, number)
    assert handle.wait("durable", 60) and committed(root) == [0]
    assert manager.save(1, state_of(1), tier="memory").wait("durable", 60)
    assert manager.close()


def test_where_agents_die_too_the_flush_saves_the_newest_alone_or_the_next_start_has_it(root: str) -> None:
    def dies_at(step: int, *tiers: str) -> None:
        manager = Manager(root, slots=3)
        manager._agent.tries = 0
        manager.restore(state_of(-1))
        for number, tier in enumerate(tiers):
            assert manager.save(step + number, state_of(step + number), tier=tier).wait("sealed", 60)  # type: ignore[arg-type]
        abandon(manager)
        disown()

    dies_at(0, "memory", "memory")
    pages = [
        slot.page
        for slot in shm_slots.attach_each_mappable(
            shm_paths.shared_memory_root(), shm_slots.own_slot_names(shm_paths.shared_memory_root())
        )
    ]
    assert sorted(page.step for page in pages if page is not None and page.state == SlotState.SEALED)[-1] == 1
    (outcome,) = flush.flush()
    assert outcome.removed and committed(root) == [1], outcome
    dies_at(2, "memory", "memory")
    manager = Manager(root)
    state = state_of(-1)
    got = manager.restore(state)
    assert isinstance(got, Restored) and (got.step, got.tier) == (3, "memory")
    until(lambda: 3 in committed(root), what="what the run goes on from on storage")
    assert manager.close()


def test_the_agent_in_a_dead_ones_place_keeps_for_memory_what_is_for_memory(root: str) -> None:
    manager = Manager(root)
    manager.restore(state_of(-1))
    assert manager.save(0, state_of(0), tier="memory").wait(timeout=60)
    dead = manager._agent.pid
    os.kill(dead, signal.SIGKILL)
    until(lambda: manager._agent.pid != dead, what="another agent")
    with pytest.warns(RuntimeWarning, match="has replaced it"):
        handle = manager.save(1, state_of(1), tier="memory")
    assert handle.wait(timeout=60) and committed(root) == []
    assert manager.close() and committed(root) == [1]


def killed(tmp_path: Path, kills: int, monkeypatch: pytest.MonkeyPatch, **how: Any) -> dict[str, Any]:
    monkeypatch.syspath_prepend(PROGRAMS)
    tool = importlib.import_module("two_cadences")
    run = tool.Run(tmp_path / "run", step_ms=5.0, every=10, storage_every=50, wait=True, **how)
    try:
        found: dict[str, Any] = tool.measure_kills(run, kills, seed=19, least=5)
    finally:
        run.close()
    return found


@pytest.mark.full
def test_a_kill_at_a_random_step_loses_less_than_the_shorter_cadence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = killed(tmp_path, 3, monkeypatch, ranks=1, mb=2.0)
    assert found["lost_most"] < 10 and found["wrong_elements"] == 0, found


@pytest.mark.full
def test_fifty_kills_of_two_ranks_lose_less_than_the_shorter_cadence_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = killed(tmp_path, 50, monkeypatch, ranks=2, mb=10.0)
    assert found["lost_most"] < 10 and found["wrong_elements"] == 0, found
