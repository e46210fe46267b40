"""A nested state dict as a State: what is filled, what stays, what is not read. Two ranks: tests/distributed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, State, load_state  # noqa: E402
from hyperpod_kit.checkpoint.adapters.dcp import Checkpoints  # noqa: E402
from hyperpod_kit.checkpoint.dcp.slices import SliceRequests  # noqa: E402
from hyperpod_kit.checkpoint.state_dict import StateDict  # noqa: E402
from hyperpod_kit.errors import CheckpointError  # noqa: E402


def saved(root: Path) -> None:
    values = {
        "model": {"w": torch.ones(3), "b": torch.zeros(0, 2)},
        "list": [torch.full((2,), 2.0), {"x": 1.5}],
        "plain": [1, "two", None],
        "pair": (torch.tensor(7), 8),
        "ünï.code": {"$": 1, 3: "three"},
    }
    with Checkpoints(root) as dcp:
        assert dcp.load(values).next_step == 0
        dcp.save(values, step=4)


def test_what_is_there_is_filled_and_all_else_is_left_alone(shm: Path, tmp_path: Path) -> None:
    saved(tmp_path / "root")
    weight, inner, plain = torch.zeros(3), {"x": 0.0}, [0]
    values: dict[str, Any] = {
        "list": [torch.zeros(2), inner],
        "plain": plain,
        "pair": (torch.tensor(0), 0),
        "ünï.code": {},
        "model": {"w": weight},
    }
    with Checkpoints(tmp_path / "root") as dcp:
        assert dcp.load(values).next_step == 5
    assert weight.tolist() == [1.0] * 3 and values["model"]["w"] is weight
    assert values["list"][0].tolist() == [2.0, 2.0] and values["list"][1] is inner and inner == {"x": 1.5}
    assert values["plain"] == [1, "two", None] and values["pair"][1] == 8 and int(values["pair"][0]) == 7
    assert values["ünï.code"] == {"$": 1, 3: "three"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": {"w": torch.zeros(4)}}, "model.w is F32 \\[3\\]"),
        ({"model": {"w": torch.zeros(3), "v": torch.zeros(3)}}, "has no model.v"),
        ({"plain": torch.zeros(1)}, "has no plain"),
        ({"list": [torch.zeros(2), {"x": 0}, torch.zeros(1)]}, "has no list.2"),
    ],
)
def test_what_does_not_fit_is_an_error_and_nothing_is_changed(shm: Path, tmp_path: Path, values, said: str) -> None:
    saved(tmp_path / "root")
    with pytest.raises(CheckpointError, match=said):
        load_state(tmp_path / "root", StateDict(values))
    tensors = [one for one in (*values.get("model", {}).values(), values.get("plain")) if one is not None]
    assert all(not one.any() for one in tensors)


def test_a_save_without_a_step_or_without_a_root_is_refused(shm: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("HPK_CHECKPOINT_ROOT", raising=False)
    with pytest.raises(CheckpointError, match="no checkpoint root"):
        Checkpoints()
    monkeypatch.setenv("HPK_CHECKPOINT_ROOT", str(tmp_path / "root"))
    with Checkpoints() as dcp:
        values = {"x": torch.zeros(1)}
        dcp.load(values)
        for wrong in (None, "", "/runs/7/latest"):
            with pytest.raises(ValueError, match="the step is unknown: give"):
                dcp.async_save(values, checkpoint_id=wrong)
        first = dcp.async_save(values, checkpoint_id="/runs/7/step-12/").result(60)
        assert first.step == 12
        values["x"] += 1
        dcp.save(values, step=13)
        assert dcp.load(values, checkpoint_id=f"{tmp_path}/root/{first.checkpoint_id}").next_step == 13
        assert not values["x"].any()


def test_an_optimizer_that_has_not_stepped_yet_gets_its_state(shm: Path, tmp_path: Path) -> None:
    def made():
        weight = torch.nn.Parameter(torch.ones(3))
        return weight, torch.optim.AdamW([weight])

    weight, optimizer = made()
    with Checkpoints(tmp_path / "root") as dcp:
        dcp.load({"optim": optimizer})
        weight.grad = torch.ones(3)
        optimizer.step()
        dcp.save({"optim": optimizer}, step=1)
    other, second = made()
    with Checkpoints(tmp_path / "root") as dcp:
        dcp.load({"optim": second})
    assert torch.equal(second.state[other]["exp_avg"], optimizer.state[weight]["exp_avg"])


def test_of_the_weights_alone_nothing_else_is_read(shm: Path, tmp_path: Path, monkeypatch) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with Manager(tmp_path / "root") as manager:
        state = State(model, optimizer, extra={"x": torch.ones(1)})
        manager.restore(state)
        manager.save(1, state)
    asked = []
    whole = SliceRequests.request_full_in_new_tensor
    monkeypatch.setattr(
        SliceRequests, "request_full_in_new_tensor", lambda self, name: asked.append(name) or whole(self, name)
    )
    other = torch.nn.Linear(3, 2)
    extra: dict[str, Any] = {}
    load_state(tmp_path / "root", State(other, extra=extra, rng=False))
    assert torch.equal(other.weight, model.weight) and extra["x"].tolist() == [1.0]
    assert asked == ["rank.00000.extra.x"]


def test_its_memory_is_made_once_the_optimizer_has_its_state() -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    found: list[int] = []
    StateDict({"model": model}).when_complete(lambda _: found.append(-1))
    assert found == [-1], "nothing is missing"
    StateDict({"model": model, "optimizer": optimizer}).when_complete(lambda _: found.append(len(optimizer.state)))
    for _ in range(2):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
    assert found == [-1, 2], "after the first step, once"
