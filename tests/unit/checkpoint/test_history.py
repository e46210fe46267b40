"""State whose shape, type or presence depends on what was trained, hooks and names: as torch's own loading has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.errors import CheckpointError
from tests.unit.checkpoint import saved
from tests.unit.checkpoint.agent_run import abandon


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


class Recorded(torch.nn.Module):
    """A layer with a history of its own in each way that modules have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.amax: list[float] = []
        self.queue: Any
        self.scale: Any
        self.register_buffer("queue", torch.zeros(0, 4))
        self.register_buffer("scale", None)

    def forward(self, x: Any) -> Any:
        self.amax.append(float(x.detach().abs().max()))
        self.queue = torch.cat([self.queue, x.detach()])
        if self.scale is None:
            self.scale = x.detach().abs().mean(0)
        return self.layer(x) * self.scale

    def get_extra_state(self) -> Any:
        return {"amax": torch.tensor(self.amax, device="cpu"), "form": 1}

    def set_extra_state(self, state: Any) -> None:
        self.amax = state["amax"].tolist()

    def _load_from_state_dict(self, state_dict: Any, prefix: Any, *others: Any) -> None:
        if f"{prefix}queue" in state_dict:
            self.queue = torch.zeros_like(state_dict[f"{prefix}queue"])
        super()._load_from_state_dict(state_dict, prefix, *others)


class Grown(torch.optim.Optimizer):
    """Moments in bfloat16 after the first step, and a history of norms."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                held = self.state[param]
                norm = param.grad.norm().reshape(1)
                held["norms"] = torch.cat([held["norms"], norm]) if held else norm
                held.setdefault("m", torch.zeros_like(param))
                held["m"] = (held["m"].float() * 0.9 + param.grad).bfloat16()
                if len(held["norms"]) >= 2:
                    held.setdefault("late", torch.zeros(3)).add_(norm)
                param.add_(held["m"].float(), alpha=-group["lr"] * (1 + float(held["norms"].sum())))


def job(seed: int, optimizer: Any = Grown) -> Any:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(Recorded(), torch.nn.Linear(4, 2))
    return model, optimizer(model.parameters())


def trained(model: Any, optimizer: Any, steps: Any) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def uses_of(state: State, ranks: Any) -> dict[str, tuple[bool, bool]]:
    """When each tensor is copied and who writes it."""
    return {piece.spec.name: (piece.early, piece.pinned) for piece in state.tensors(ranks).pieces}


@pytest.mark.parametrize("tier", ["memory", "storage"])
def test_what_grew_is_restored_from_memory_too(root: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPK_RESUME_MEMORY", str(int(tier == "memory")))
    model, optimizer = job(0)
    trained(model, optimizer, range(3))
    manager = Manager(root)
    manager.restore(State(model, optimizer))
    assert manager.save(2, State(model, optimizer), on_busy="wait").wait("durable", 60)
    uses = uses_of(State(model, optimizer), manager.ranks)
    undisturbed = trained(model, optimizer, range(3, 6))
    if tier == "memory":
        abandon(manager)
    else:
        manager.close()

    model, optimizer = job(1)
    with Manager(root) as manager:
        state = State(model, optimizer)
        found = manager.restore(state)
        assert isinstance(found, Restored) and found.tier == tier
        assert uses_of(state, manager.ranks) == uses, "a buffer that was made by the restore is one to the next save"
    assert model[0].queue.shape == (9, 4) and len(model[0].amax) == 3
    assert {held["m"].dtype for held in optimizer.state.values()} == {torch.bfloat16}
    assert trained(model, optimizer, range(3, 6)) == undisturbed


def test_a_buffer_that_no_code_loads_is_refused_by_name(root: str) -> None:
    model = torch.nn.BatchNorm1d(4, affine=False)
    saved.save(root, State(model))
    with pytest.raises(CheckpointError, match=r"running_mean is F32 \[4\] in the checkpoint, F32 \[5\] here"):
        saved.restore(root, State(torch.nn.BatchNorm1d(5, affine=False)))


class CastOnTheWay(torch.nn.Module):
    """Its buffer is of another type after the first forward."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.mean = self.mean.double() + x.detach().mean(0).double() / 3
        return self.layer(x) + self.mean.sum()


@pytest.mark.parametrize("tier", ["memory", "storage"])
def test_a_buffer_that_a_program_casts_is_of_the_type_that_was_saved(
    root: str, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPK_RESUME_MEMORY", str(int(tier == "memory")))
    model, batch = CastOnTheWay(), torch.arange(8.0).reshape(2, 4)
    model(batch)
    manager = Manager(root)
    manager.restore(State(model))
    assert manager.save(0, State(model), on_busy="wait").wait("durable", 60)
    if tier == "memory":
        abandon(manager)
    else:
        manager.close()
    fresh = CastOnTheWay()
    with Manager(root) as manager:
        state = State(fresh)
        found = manager.restore(state)
        assert isinstance(found, Restored) and found.tier == tier
        assert torch.equal(fresh.mean, model.mean) and fresh.mean.dtype == torch.float64
        assert "mean" in dict(fresh.named_buffers())
        assert torch.equal(fresh(batch), model(batch))
        assert manager.save(1, state, on_busy="wait").wait("durable", 60)


def test_a_weight_of_another_type_is_refused_by_name(root: str) -> None:
    saved.save(root, State(torch.nn.Linear(2, 2)))
    with pytest.raises(CheckpointError, match=r"bias is F32 \[2\] in the checkpoint, BF16 \[2\] here"):
        saved.restore(root, State(torch.nn.Linear(2, 2).bfloat16()))


def test_hooks_of_loading_are_called_and_those_of_a_step_are_not(root: str) -> None:
    heard: list[str] = []

    def hooked(seed: int) -> Any:
        model, optimizer = job(seed, lambda params: torch.optim.AdamW(params, lr=0.01))

        def renamed(_: Any, body: Any) -> Any:
            state = {key: {f"x_{name}": value for name, value in held.items()} for key, held in body["state"].items()}
            return {**body, "state": state}

        def back(_: Any, body: Any) -> Any:
            heard.append("pre")
            state = {key: {name[2:]: value for name, value in held.items()} for key, held in body["state"].items()}
            return {**body, "state": state}

        optimizer.register_state_dict_post_hook(renamed)
        optimizer.register_load_state_dict_pre_hook(back)
        optimizer.register_load_state_dict_post_hook(lambda _: heard.append("post"))
        optimizer.register_step_post_hook(lambda *_: heard.append("step"))
        model.register_load_state_dict_post_hook(lambda *_: heard.append("module"))
        return model, optimizer

    model, optimizer = hooked(0)
    trained(model, optimizer, range(3))
    heard.clear()
    saved.save(root, State(model, optimizer))
    undisturbed = trained(model, optimizer, range(3, 6))
    model, optimizer = hooked(1)
    heard.clear()
    saved.restore(root, State(model, optimizer))
    assert heard == ["module", "pre", "post"]
    assert trained(model, optimizer, range(3, 6)) == undisturbed


def test_a_number_is_no_parameters_name(root: str) -> None:
    def build(seed: int) -> Any:
        torch.manual_seed(seed)
        model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(3)) for _ in range(2)])
        other = torch.nn.Parameter(torch.randn(3))
        optimizer = torch.optim.AdamW([other, *model.parameters()], lr=0.01)
        return model, other, optimizer, State(model, optimizer, extra={"other": other.data})

    def steps(model: Any, other: Any, optimizer: Any) -> list[float]:
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = (model[0] * model[1] + other).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    *parts, state = build(0)
    steps(*parts)
    saved.save(root, state)
    undisturbed = steps(*parts)
    *parts, state = build(1)
    saved.restore(root, state)
    assert steps(*parts) == undisturbed


def test_state_keeps_its_type_through_code_that_calls_torchs_own(root: str) -> None:
    class Own(torch.optim.SGD):
        def load_state_dict(self, state_dict: Any) -> None:
            super().load_state_dict(state_dict)

    def build(seed: int) -> Any:
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 3).bfloat16()
        return model, Own(model.parameters(), lr=0.1)

    model, optimizer = build(0)
    for param in model.parameters():
        optimizer.state[param]["momentum_buffer"] = torch.randn(param.shape)
    saved.save(root, State(model, optimizer))
    other, fresh = build(1)
    saved.restore(root, State(other, fresh))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(optimizer.state[a]["momentum_buffer"], fresh.state[b]["momentum_buffer"])


def test_a_module_of_torchscript_is_restored(root: str) -> None:
    model, fresh = (torch.jit.script(torch.nn.BatchNorm1d(3)) for _ in range(2))
    model(torch.ones(2, 3))
    saved.save(root, State(model))
    saved.restore(root, State(fresh))
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in model.state_dict().items())
