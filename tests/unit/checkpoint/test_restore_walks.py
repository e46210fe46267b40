"""How often a restore goes through its state."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from tests.support.rows import share


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
