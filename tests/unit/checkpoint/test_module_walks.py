"""How often a restore goes through a model, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.state import modules
from tests.support.rows import share


def shared() -> torch.nn.Module:
    """One module in three places, the first of them deepest, and places without a module."""
    tied = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Sequential(tied)), tied, torch.nn.Linear(2, 2))
    model.add_module("nothing", None)
    model[0].add_module("again", tied)
    return model


def circular() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0].add_module("above", model)
    return model


MODELS = {
    "one": lambda: torch.nn.Linear(2, 2),
    "shared": shared,
    "circular": circular,
    "transformer": lambda: torch.nn.TransformerEncoderLayer(8, 2),
    "scripted": lambda: torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", sorted(MODELS))
def test_modules_come_in_the_order_of_torch(case: str) -> None:
    model = MODELS[case]()
    expected = list(model.modules())
    received = list(modules.iter_modules(model))
    assert len(received) == len(expected)
    assert all(here is there for here, there in zip(received, expected, strict=True))


@pytest.mark.parametrize("complete", share([True, False], 1))
def test_a_restore_walks_its_state_twice(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    """For what is filled, and for the first save: what cannot be saved is found on the way."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    if complete:
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    with Manager(tmp_path / "run") as manager:
        manager.restore(State(model, optimizer))
        manager.save(0, State(model, optimizer))
    walks = []
    walk = State._encode_shared_parts
    monkeypatch.setattr(State, "_encode_shared_parts", lambda self, *given: walks.append(self) or walk(self, *given))
    state = State(model, optimizer)
    with Manager(tmp_path / "run") as manager:
        assert isinstance(manager.restore(state), Restored)
        assert walks == [state, state]
