"""Optimizers that do not take a step with zero gradients, that are wrapped, and that are others than what was saved."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.codec import sharding
from hyperpod_kit.checkpoint.state import optimizer, optimizer_state
from hyperpod_kit.errors import CheckpointError, StateNotSerializable
from tests.unit.checkpoint import saved
from tests.unit.checkpoint.agent_run import abandon
from tests.unit.checkpoint.test_state import job


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


def sparse() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Embedding(20, 4, sparse=True)
    return model, torch.optim.SparseAdam(model.parameters())


class Picky(torch.optim.AdamW):
    """Refuses zero gradients, with an exception of its own, when half of its state is made."""

    def step(self, closure: Any = None) -> Any:
        params = self.param_groups[0]["params"]
        for number, param in enumerate(params):
            if not param.grad.any():
                if number:
                    raise AssertionError("no gradient")
                self.state[param] = {"half": torch.ones(1)}
        return super().step(closure)


@pytest.mark.parametrize("kind", ["SparseAdam", "Picky"])
def test_optimizers_that_refuse_zero_gradients_are_restored(root: str, kind: str) -> None:
    def build() -> tuple[Any, Any]:
        if kind == "SparseAdam":
            return sparse()
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        return model, Picky(model.parameters())

    def step(model: Any, its: Any) -> None:
        its.zero_grad()
        model(torch.tensor([1, 2]) if kind == "SparseAdam" else torch.ones(4)).sum().backward()
        its.step()

    model, its = build()
    step(model, its)
    saved.save(root, State(model, its))
    step(model, its)

    other, fresh = build()
    saved.restore(root, State(other, fresh))
    step(other, fresh)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    a, b = its.state_dict()["state"], fresh.state_dict()["state"]
    assert a.keys() == b.keys() and all(
        torch.equal(torch.as_tensor(a[n][key]), torch.as_tensor(b[n][key])) for n in a for key in a[n]
    )


def test_gradients_from_before_the_restore_keep_no_capture_from_being_used(root: str) -> None:
    """Without targets for the optimizer's state, the newest save, which is in memory only, would be passed over."""
    model, its = job()
    manager = Manager(root)
    manager.restore(State(model, its))
    assert manager.save(0, State(model, its)).wait("durable", 60)
    abandon(manager)
    other, fresh = job(seed=1)
    weights = [param.detach().clone() for param in other.parameters()]
    other(torch.ones(4)).sum().backward()
    gradients = [param.grad.clone() for param in other.parameters()]
    assert optimizer_state.make_state_by_null_step(fresh) and fresh.state
    assert all(torch.equal(a, param.grad) for a, param in zip(gradients, other.parameters(), strict=True))
    assert all(torch.equal(a, param) for a, param in zip(weights, other.parameters(), strict=True))
    fresh.state.clear()
    with Manager(root) as manager:
        got = manager.restore(State(other, fresh))
    assert isinstance(got, Restored) and got.tier == "memory"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


class Prepared(torch.optim.Optimizer):
    """As Accelerate's: an Optimizer in name, for schedulers to accept it, and without the base class's attributes."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        return self.optimizer.defaults

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict)

    def step(self, closure: Any = None) -> Any:
        self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


class Slow(Prepared):
    """As a Lookahead: weights of its own beside those of the optimizer that it drives."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner)
        self.slow = torch.zeros(2)

    def state_dict(self) -> Any:
        return {**self.optimizer.state_dict(), "slow": self.slow}

    def load_state_dict(self, state_dict: Any) -> None:
        self.slow.copy_(state_dict.pop("slow"))
        self.optimizer.load_state_dict(state_dict)


@pytest.mark.parametrize("kind", [Prepared, Slow])
def test_a_wrapped_optimizer_is_restored_and_its_steps_are_waited_for(root: str, kind: Any) -> None:
    model, inner = job()
    wrapped = kind(inner)
    if kind is Slow:
        wrapped.slow.fill_(7)
    saved.save(root, State(model, wrapped))
    other, its = job(seed=1)
    again = kind(its)
    manager, state = Manager(root, overlap=True), State(other, again)
    manager.restore(state)
    assert state.optimizers == [its]
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b) and torch.equal(inner.state[a]["exp_avg"], its.state[b]["exp_avg"])
    assert kind is Prepared or again.slow.tolist() == [7, 7]
    for step in range(2):
        handle = manager.save(step, state, on_busy="wait")
        other(torch.ones(4)).sum().backward()
        again.step()
        assert handle.wait("durable", 60)
    assert manager.close()
    assert optimizer.unwrap_stateless_wrappers(wrapped) is (inner if kind is Prepared else wrapped)


class Driver:
    """As schedulefree's wrapper: an optimizer in what it does and not in name, which keeps its own values where the one
    that it drives has its state, and changes the weights itself."""

    dtype = torch.float64  # torch's own loading rounds it to that of the parameter

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.base = inner

    @property
    def state(self) -> Any:
        return self.base.state

    @property
    def param_groups(self) -> Any:
        return self.base.param_groups

    def state_dict(self) -> Any:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.base.load_state_dict(state_dict)

    def zero_grad(self) -> None:
        self.base.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.base.step()
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for param in group["params"]:
                held = self.base.state[param]
                held["sum"] = held.get("sum", 0) + param.to(self.dtype)
                param.add_(held["sum"].float(), alpha=-0.01 * group["count"])


class Reformed(Driver):
    """The same, with a form of its own for the state, and with a value of its own."""

    dtype = torch.float32
    seen: Any = 0.0

    def state_dict(self) -> Any:
        return {"inner": self.base.state_dict(), "seen": self.seen}

    def load_state_dict(self, state_dict: Any) -> None:
        self.seen = state_dict["seen"]
        self.base.load_state_dict(state_dict["inner"])

    def step(self) -> None:
        super().step()
        self.seen = self.seen + torch.ones(2)


@pytest.mark.parametrize("kind", [Driver, Reformed])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_what_drives_an_optimizer_and_is_none_goes_on_where_it_was(root: str, kind: Any, make: Any) -> None:
    def trained(model: Any, driver: Any, steps: range) -> list[float]:
        losses = []
        for step in steps:
            driver.zero_grad()
            loss = model(torch.full((4,), 1.0 + step)).square().sum()
            loss.backward()
            driver.step()
            losses.append(loss.item())
        return losses

    model, _ = job()
    driver = kind(make(model.parameters(), lr=0.01))
    with Manager(root) as manager:
        state = State(model, driver)
        manager.restore(state)
        trained(model, driver, range(3))
        assert manager.save(2, state, on_busy="wait").wait("durable", 60)
    undisturbed = trained(model, driver, range(3, 6))
    other, _ = job(seed=1)
    again = kind(make(other.parameters(), lr=0.01))
    assert isinstance(saved.restore(root, State(other, again)), Restored)
    assert {held["sum"].dtype for held in again.base.state.values()} == {kind.dtype}
    assert trained(other, again, range(3, 6)) == undisturbed
    assert kind is Driver or again.seen.tolist() == [6, 6]


def test_a_form_of_its_own_with_divided_tensors_is_refused_at_the_save(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, inner = job()
    with Manager(root) as manager:
        state = State(optimizer=Reformed(inner))  # type: ignore[arg-type]
        manager.restore(state)
        monkeypatch.setattr(sharding, "is_sharded", lambda tensor: True)
        with pytest.raises(StateNotSerializable, match=r"divided among the ranks, in the state_dict of \S+Reformed"):
            manager.save(0, state)


def test_another_model_than_the_one_that_was_saved_is_refused_where_own_code_loads_too(root: str) -> None:
    _, inner = job()
    saved.save(root, State(optimizer=Driver(inner)))  # type: ignore[arg-type]
    fewer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3, 4))])
    with pytest.raises(CheckpointError, match="the parameters of optimizer differ"):
        saved.restore(root, State(optimizer=Driver(fewer)))  # type: ignore[arg-type]


def test_another_class_with_the_same_state_is_warned_of_and_with_other_state_refused(root: str) -> None:
    model, its = job(torch.optim.Adam)
    saved.save(root, State(model, its))
    other, fresh = job(torch.optim.AdamW, seed=1)
    with pytest.warns(
        RuntimeWarning,
        match=r"optimizer is torch\.optim\.adamw\.AdamW here, and the checkpoint's is "
        r"torch\.optim\.adam\.Adam: it continues with",
    ):
        saved.restore(root, State(other, fresh))
    assert torch.equal(fresh.state[other.weight]["exp_avg"], its.state[model.weight]["exp_avg"])

    for kind, options, lost, absent in (
        (torch.optim.SGD, {"momentum": 0.9}, ", 'step'", "'momentum_buffer'"),
        (torch.optim.SGD, {}, ", 'step'", ""),
        (torch.optim.Adagrad, {}, "", "'sum'"),
    ):
        other, fresh = job(kind, seed=1, **options)
        before = other.weight.detach().clone()
        with pytest.raises(
            CheckpointError,
            match=rf"{kind.__name__} here, .*Adam: \['exp_avg', 'exp_avg_sq'{lost}\] "
            rf"would be lost, \[{absent}\] are not there",
        ) as caught:
            saved.restore(root, State(other, fresh))
        assert "State(model)" in str(caught.value.hint) and torch.equal(other.weight, before)
        assert fresh.param_groups[0]["lr"] == 0.1 and "betas" not in fresh.param_groups[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved.restore(root, State(*job(torch.optim.Adam, seed=1)))
        saved.restore(root, State(job(seed=1)[0]))
