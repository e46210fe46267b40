"""Another default device, default dtype or inference mode around each call: on a device as on a host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.gpu import test_training  # noqa: E402
from tests.unit.checkpoint import test_ambient  # noqa: E402


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)


STATES: dict[str, Any] = {
    "default device": default_device,
    "device context": lambda: torch.device("cuda"),
    "default dtype": test_ambient.default_dtype,
    "inference mode": torch.inference_mode,
}
LOOPS: list[Any] = [
    test_training.Loop,
    test_training.Scaled,
    test_training.Averaged,
    test_training.OnHost,
]
EIGHT_BIT = pytest.param(test_training.EightBit, marks=test_training.OF_TORCHAO)
CASES = [pytest.param(name, loop, overlap) for name in sorted(STATES) for loop in LOOPS for overlap in (False, True)]
# torchao's counts of steps lie on the default device of whoever makes them: under one, the whole program has to be.
CASES += [
    pytest.param(name, test_training.EightBit, False, marks=test_training.OF_TORCHAO)
    for name in ("default dtype", "inference mode")
]


@pytest.mark.parametrize(("name", "loop", "overlap"), CASES)
def test_calls_are_made_in_it(root: str, name: str, loop: Any, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            with STATES[name]():
                return function(*args, **options)

        return call

    for owner, method in test_ambient.CALLS:
        monkeypatch.setattr(owner, method, inside(getattr(owner, method)))
    test_training.test_training_goes_on_bit_for_bit(root, loop, overlap)


@pytest.mark.parametrize("loop", [test_training.Loop, test_training.Averaged, EIGHT_BIT])
def test_the_whole_program_runs_with_another_default_device(root: str, loop: Any) -> None:
    with default_device():
        test_training.test_training_goes_on_bit_for_bit(root, loop, overlap=False)
