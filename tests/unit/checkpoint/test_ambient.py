"""A program may have another default device, default dtype or inference mode around its calls: none of it is ours."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import hyperpod_kit
from hyperpod_kit.checkpoint import Manager, State, load_state, load_weights
from tests.support.rows import full
from tests.unit.checkpoint import test_history, test_in_place, test_optimizer, test_state, test_subclasses

# What torch makes on the default device, and what is of the default dtype unless it says otherwise.
_MADE = {"empty", "zeros", "ones", "full", "rand", "randn", "eye", "linspace", "empty_strided", "logspace"}
_OF_ANY_TYPE = {"tensor", "arange", "as_tensor", "asarray", "scalar_tensor", "randint", "randperm"}


def factories(source: str) -> Iterator[tuple[int, str]]:
    """(line, what is missing) of each call that takes something of the ambient state."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "torch":
            continue
        given = {keyword.arg for keyword in node.keywords}
        if node.func.attr in _MADE | _OF_ANY_TYPE and "device" not in given:
            yield node.lineno, f"torch.{node.func.attr} without device="
        if node.func.attr in _MADE and "dtype" not in given:
            yield node.lineno, f"torch.{node.func.attr} without dtype="


def test_each_factory_names_its_device_and_type() -> None:
    assert list(factories("torch.zeros(3)\ntorch.tensor(1, device='cpu')")) == [
        (1, "torch.zeros without device="),
        (1, "torch.zeros without dtype="),
    ]
    package = Path(hyperpod_kit.__file__).parent
    found = [
        f"{path.relative_to(package)}:{line}: {missing}"
        for path in sorted(package.rglob("*.py"))
        # These are programs of their own: nobody's state is around them.
        if "bench" not in path.parts and "torch" in (text := path.read_text())
        for line, missing in factories(text)
    ]
    assert not found, "\n".join(found)


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    """As `torch.set_default_device("cuda")`: what torch makes without device= cannot be reached from the host."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


STATES: dict[str, Any] = {
    "default device": default_device,
    "device context": lambda: torch.device("meta"),
    "default dtype": default_dtype,
    "inference mode": torch.inference_mode,
    "fake tensors": lambda: FakeTensorMode(allow_non_fake_inputs=True),
}
OF_THE_GATE = ("default device", "inference mode")
CALLS: list[tuple[Any, str]] = [
    (Manager, "__init__"),
    *((Manager, name) for name in ("restore", "save", "step", "reached", "peek", "fence", "close")),
    (State, "__init__"),
]


@pytest.fixture(params=[*OF_THE_GATE, *full(*sorted(STATES.keys() - set(OF_THE_GATE)))])
def ambient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the public API is made in such a state; what the program makes itself is not."""
    state = STATES[request.param]

    def around(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            with state():
                return function(*args, **options)

        return call

    for owner, name in CALLS:
        monkeypatch.setattr(owner, name, around(getattr(owner, name)))
    for module in (test_history, test_in_place, test_optimizer, test_state, test_subclasses):
        for function in (load_state, load_weights):
            if hasattr(module, function.__name__):
                monkeypatch.setattr(module, function.__name__, around(function))


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.mark.usefixtures("ambient")
class TestUnderAnotherState:
    """Some of the engine's tests once more."""

    def test_history(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        test_history.test_what_grew_is_restored_from_memory_too(root, "storage", monkeypatch)

    def test_hooks(self, root: str) -> None:
        test_history.test_hooks_of_loading_are_called_and_those_of_a_step_are_not(root)

    def test_subclasses(self, root: str) -> None:
        test_subclasses.test_they_are_filled_where_they_lie(root)

    def test_types(self, root: str) -> None:
        test_history.test_state_keeps_its_type_through_code_that_calls_torchs_own(root)


def test_a_slot_that_is_made_in_inference_mode_can_be_written_to_later(root: str) -> None:
    """What has gaps in memory, or lies on a device, torch copies: it writes to no view that was made in that mode."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.arange(12.0).view(4, 3).t())])
    state = State(model, rng=False)
    with Manager(root) as manager:
        manager.restore(state)
        with torch.inference_mode():
            for number in range(2):  # of either slot
                assert manager.save(number, state, on_busy="wait").wait("durable", 60)
        for number in range(2, 4):
            assert manager.save(number, state, on_busy="wait").wait("durable", 60)
