"""What training loops keep beside a model and one optimizer: groups of parameters that come later, several optimizers,
a gradient scaler, an average of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, Restored, State  # noqa: E402
from hyperpod_kit.errors import CheckpointError  # noqa: E402


def step(model: Any, *optimizers: Any) -> None:
    model(torch.ones(2, 4)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def head_first(groups: int = 1) -> tuple[Any, Any]:
    """A model whose last layer is trained at first; with two groups the rest too."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model[1].parameters(), lr=0.1)
    if groups == 2:
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    return model, optimizer


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_group_that_is_added_in_training_is_saved_and_wanted_at_the_next_start(shm: Path, tmp_path: Path) -> None:
    root, (model, optimizer) = tmp_path / "root", head_first()
    state = State(model, optimizer)
    with Manager(root) as manager:
        manager.restore(state)
        step(model, optimizer)
        assert manager.save(1, state).wait("durable", 60)
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
        assert manager.save(2, state).wait("durable", 60)  # before it has made a step
        step(model, optimizer)
        assert manager.save(3, state).wait("durable", 60)
    again, its = head_first(groups=2)
    with Manager(root) as manager:
        found = manager.restore(State(again, its))
    assert isinstance(found, Restored) and found.step == 3
    assert same(model.state_dict(), again.state_dict()) and [one["lr"] for one in its.param_groups] == [0.1, 0.01]
    assert all(same(kept, its.state_dict()["state"][name]) for name, kept in optimizer.state_dict()["state"].items())
    with Manager(root) as manager, pytest.raises(CheckpointError, match="the parameters of optimizer differ") as caught:
        manager.restore(State(*head_first()))
    assert "unexpected" in str(caught.value) and caught.value.hint


def test_two_optimizers_a_scaler_and_an_average_come_back(shm: Path, tmp_path: Path) -> None:
    def made() -> tuple[Any, ...]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        slow = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        return model, torch.optim.AdamW(model[1].parameters()), slow, average, scaler

    def state_of(model: Any, fast: Any, slow: Any, average: Any, scaler: Any) -> State:
        return State(model, fast, slow=slow, average=average, scaler=scaler)

    first = made()
    model, fast, slow, average, scaler = first
    with Manager(tmp_path / "root") as manager:
        manager.restore(state := state_of(*first))
        for _ in range(3):
            scaler.scale(model(torch.ones(2, 4)).square().sum()).backward()
            for optimizer in (fast, slow):
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
            average.update_parameters(model)
        assert manager.save(3, state).wait("durable", 60)
    again = made()
    with Manager(tmp_path / "root") as manager:
        assert isinstance(manager.restore(state_of(*again)), Restored)
    assert scaler.state_dict() == again[4].state_dict() and scaler.get_scale() == 2.0**11
    for one, other in zip(first[:4], again[:4]):
        kept, found = one.state_dict(), other.state_dict()
        if "state" in kept:
            kept, found = kept["state"], found["state"]
            assert kept.keys() == found.keys() and all(same(kept[name], found[name]) for name in kept)
        else:
            assert same(kept, found)
