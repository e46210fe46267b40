"""What no checkpoint can hold is refused before a step was trained, and the traceback says all of it."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.adapters.dcp import Checkpoints
from hyperpod_kit.errors import StateNotSerializable
from tests.support.rows import share


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


class Opaque:
    __slots__ = ()


class Stateful:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Extra(torch.nn.Linear):
    def get_extra_state(self) -> Any:
        return {"kept": Opaque()}

    def set_extra_state(self, state: Any) -> None:
        pass


def grouped() -> State:
    model = torch.nn.Linear(2, 2)
    return State(model, torch.optim.SGD([{"params": model.parameters(), "rule": Opaque()}], lr=0.1))


REFUSED = {
    "value": (lambda: State(extra={"a": {"b": [1, Opaque()]}}), "rank.00000.extra.a.b.1", "Opaque"),
    "own dict": (lambda: State(extra={"a": UserDict()}), "rank.00000.extra.a", "UserDict"),
    "sparse tensor": (lambda: State(extra={"a": torch.eye(2).to_sparse()}), "rank.00000.extra.a", "sparse"),
    "object": (lambda: State(schedule=Stateful(Opaque())), "rank.00000.objects.schedule.value", "Opaque"),
    "extra state": (lambda: State(Extra(2, 2)), "model._extra_state.kept", "Opaque"),
    "group": (grouped, "optimizer.param_groups.0.rule", "Opaque"),
    "second model": (lambda: State(second=Extra(2, 2)), "objects.second._extra_state.kept", "Opaque"),
}


@pytest.mark.parametrize("full", share([False, True], 1))
@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_start_from_scratch_refuses_it(root: str, case: str, full: bool) -> None:
    make, path, kind = REFUSED[case]
    state = make()
    state.full = full
    manager = Manager(root)
    with pytest.raises(StateNotSerializable) as caught:
        manager.restore(state)
    text = "".join(traceback.format_exception_only(caught.value))
    assert f"state at {path} " in text and kind in text and caught.value.hint and caught.value.hint in text, text
    # It is no end of the Manager: what is mended is saved.
    assert manager.save(0, State(torch.nn.Linear(2, 2))).wait("durable", 60) and manager.close()


class Hoarder(torch.optim.SGD):
    """Of a kind that makes its state in the first step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["seen"] = Opaque()
        return super().step(closure)


def test_what_an_optimizer_makes_is_refused_in_its_first_step(root: str) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = Hoarder(model.parameters(), lr=0.1)
    manager = Manager(root)
    manager.restore(State(model, optimizer))
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(StateNotSerializable, match=r"state at optimizer\.state\.weight\.seen is a .*Opaque.*; "):
        optimizer.step()
    optimizer.step()  # said once
    manager.close()


class Loader(Stateful):
    """Its state_dict makes what iterates, as torchdata's does."""

    asked = False

    def __iter__(self) -> Any:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        self.asked = True
        return super().state_dict()


def test_a_loader_is_not_asked_before_it_is_used(root: str) -> None:
    loader, model = Loader(3), torch.nn.Linear(2, 2)
    manager = Manager(root)
    manager.restore(State(model, torch.optim.SGD(model.parameters(), momentum=0.9), loader=loader))
    assert not loader.asked and manager.close()


def test_a_state_dict_as_dcp_takes_it_is_refused_too(root: str) -> None:
    checkpoints = Checkpoints(root)
    with pytest.raises(StateNotSerializable, match=r"state at values\.bad is a .*Opaque"):
        checkpoints.load({"values": {"bad": Opaque()}})
    checkpoints.close()


@pytest.mark.full
def test_the_traceback_of_a_program_says_it(root: str) -> None:
    program = (
        "import sys, torch\n"
        "from hyperpod_kit.checkpoint import Manager, State\n"
        "Manager(sys.argv[1]).restore(State(extra={'best': {1: object()}}))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, root], capture_output=True, text=True, timeout=120)
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == 1 and "rank.00000.extra.best.1 is a builtins.object" in last, ended.stderr
    assert "in place of rank.00000.extra.best.1 save" in last


class HeldBackMetric(torch.nn.Module):
    """As torchmetrics has it: its states are attributes, and of no checkpoint until somebody says so."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.total = torch.zeros(())
        self._persistent = {"total": kept}

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return {"total": self.total} if self._persistent["total"] else {}


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()), persistent=False)


@pytest.mark.parametrize(
    ("thing", "what"),
    [(HeldBackMetric(kept=False), "HeldBackMetric, is saved: its total are"), (Counter(), "Counter.*its count are")],
)
def test_an_object_of_which_nothing_is_saved_is_warned_about(root: str, thing: Any, what: str) -> None:
    with Manager(root) as manager, pytest.warns(RuntimeWarning, match=f"nothing of seen, a {what}"):
        manager.restore(State(torch.nn.Linear(2, 2), seen=thing))


@pytest.mark.parametrize("thing", [torch.nn.CrossEntropyLoss(), torch.nn.BatchNorm1d(2)])
def test_an_object_that_has_nothing_or_saves_it_is_not(root: str, thing: Any) -> None:
    with Manager(root) as manager:
        manager.restore(State(torch.nn.Linear(2, 2), seen=thing))
