"""A restore of one checkpoint by its name: at a start, and in the midst of training."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint
from tests.support.damage import flip
from tests.unit.checkpoint.agent_run import abandon


def net(value: float = 0.0) -> torch.nn.Linear:
    made = torch.nn.Linear(4, 4)
    with torch.no_grad():
        made.weight.fill_(value)
    return made


def weight(state: State) -> float:
    assert state.model is not None
    return float(state.model.get_parameter("weight").detach()[0, 0])


def state_of(value: float = 0.0) -> State:
    return State(net(value), rng=False)


def save(manager: Manager, step: int, value: float) -> None:
    assert manager.save(step, state_of(value), on_busy="wait").wait("durable", 60)


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture
def saved(root: str) -> list[str]:
    """Steps 1, 2 and 3, whose weights are their number; the attempts, oldest first."""
    with Manager(root, keep=None) as manager:
        for step in (1, 2, 3):
            save(manager, step, step)
    return [entry.checkpoint_id for entry in reversed(catalog.list_checkpoints(root))]


def test_it_is_that_one_and_what_is_saved_then_is_the_newest(
    root: str, saved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPK_RESUME_FROM", saved[0])  # the program's word counts more
    with Manager(root, keep=None) as manager:
        state = state_of()
        peeked = manager.inspect(saved[1])
        assert peeked is not None and peeked.step == 2
        got = manager.restore(state, checkpoint_id=saved[1])
        assert isinstance(got, Restored) and (got.step, got.checkpoint_id, weight(state)) == (2, saved[1], 2.0)
        save(manager, 3, 30.0)
    monkeypatch.delenv("HPK_RESUME_FROM")
    with Manager(root, keep=None) as manager:
        state = state_of()
        got = manager.restore(state)
        assert isinstance(got, Restored) and (got.step, weight(state)) == (3, 30.0)
    assert set(saved) < {entry.checkpoint_id for entry in catalog.list_checkpoints(root)}


def test_it_goes_back_in_the_midst_of_training(root: str, saved: list[str]) -> None:
    with Manager(root, keep=None) as manager:
        state = state_of()
        manager.restore(state)
        save(manager, 4, float("nan"))
        got = manager.restore(state, checkpoint_id=saved[2])
        assert isinstance(got, Restored) and (got.step, weight(state)) == (3, 3.0)
        save(manager, 4, 4.0)
    with Manager(root, keep=None) as manager:
        state = state_of()
        manager.restore(state)
        assert weight(state) == 4.0


def test_what_is_newer_and_only_in_memory_is_given_up(root: str, saved: list[str]) -> None:
    manager = Manager(root, keep=None)
    manager.restore(state_of())
    assert manager.save(4, state_of(4.0), tier="memory").wait("sealed", 60)
    abandon(manager)
    with Manager(root, keep=None) as manager:
        state = state_of()
        got = manager.restore(state, checkpoint_id=saved[2])
        assert isinstance(got, Restored) and (got.step, weight(state), got.rejected) == (3, 3.0, ())
    with Manager(root, keep=None) as manager:
        got = manager.restore(state_of())
        assert isinstance(got, Restored) and got.checkpoint_id == saved[2]


def test_one_that_is_damaged_or_not_there_is_an_error_and_no_other_is_taken(root: str, saved: list[str]) -> None:
    flip(next(Path(root, saved[1]).glob("shard-*")), 4096 + 8)
    with Manager(root, keep=None) as manager:
        with pytest.raises(NoValidCheckpoint, match=saved[1]):
            manager.restore(state_of(), checkpoint_id=saved[1])
        with pytest.raises(CheckpointError, match=r"seq-000099.* is not a committed checkpoint"):
            manager.restore(state_of(), checkpoint_id="seq-000099.step-0000000099.e1-abcdef")
        state = state_of()
        got = manager.restore(state, checkpoint_id=saved[0])
        assert isinstance(got, Restored) and (got.step, weight(state)) == (1, 1.0)
