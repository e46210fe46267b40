"""A restore onto a device fills its tensors from the chunks: no second copy of the state lies on the host.

The device is this machine's own memory, reached as a GPU's would be: by torch's copies, never by addresses. tests/gpu
has the real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, State, load_weights  # noqa: E402
from hyperpod_kit.checkpoint.dcp import slices  # noqa: E402
from hyperpod_kit.checkpoint.transfer import device, load, memory_copy, tensor_memory  # noqa: E402
from hyperpod_kit.errors import CheckpointError  # noqa: E402
from tests.unit.checkpoint import saved  # noqa: E402
from tests.unit.checkpoint.agent_run import abandon  # noqa: E402
from tests.unit.checkpoint.test_manager import disown  # noqa: E402

LARGE = 1 << 20  # bytes; what is larger lies on the device


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


def pretend(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Large tensors lie on a device from now on. How many of them were settled, each time."""
    settled: list[int] = []
    empty, move = load.allocate_host_tensor, memory_copy.copy_memory

    def made(spec: Any) -> Any:
        assert spec.nbytes <= LARGE, f"{spec.name} would be on the host a second time"
        return empty(spec)

    def moved(target: int, source: int, size: int) -> None:
        assert size <= LARGE, "a device's memory is not reached by addresses"
        move(target, source, size)

    monkeypatch.setattr(tensor_memory, "is_on_cuda", lambda tensor: tensor.nbytes > LARGE)
    monkeypatch.setattr(
        device, "synchronize", lambda tensors: settled.append(sum(map(tensor_memory.is_on_cuda, tensors)))
    )
    monkeypatch.setattr(device, "register_slot_with_cuda_driver", lambda memory: True)
    monkeypatch.setattr(load, "allocate_host_tensor", made)
    monkeypatch.setattr(slices, "allocate_host_tensor", made)
    monkeypatch.setattr(memory_copy, "copy_memory", moved)
    return settled


def model(fill: float) -> Any:
    made = torch.nn.Sequential(torch.nn.Linear(3000, 2000), torch.nn.Linear(2000, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for number, value in enumerate(made.parameters()):
            value.copy_(torch.arange(value.numel()).view(value.shape) + fill * (number + 1))
    return made


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def test_from_storage(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    was, now = model(1.5), model(0.0)
    saved.save(root, State(was))
    settled = pretend(monkeypatch)
    assert saved.restore(root, State(now)).tier == "storage"  # type: ignore[union-attr]
    assert same(was, now) and settled == [1]


def test_from_memory(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    was, now = model(1.5), model(0.0)
    manager = Manager(root)
    manager.restore(state := State(was))
    assert manager.save(0, state).wait("durable", 60)
    abandon(manager)
    disown()
    settled = pretend(monkeypatch)
    assert saved.restore(root, State(now)).tier == "memory"  # type: ignore[union-attr]
    assert same(was, now) and settled == [1]


def test_slices_of_a_checkpoint_with_other_tensors(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    was, now = model(1.5), model(0.0)
    saved.save(root, State(was))
    settled = pretend(monkeypatch)
    load_weights(root, now)
    assert same(was, now) and sum(settled) == 1


def test_a_device_that_fails_is_not_the_checkpoint_s_fault(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.save(root, State(model(1.5)))
    pretend(monkeypatch)

    def fails(target: Any, view: memoryview) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(device, "copy_from_host_and_wait", fails)
    with pytest.raises(CheckpointError, match="could not be filled: RuntimeError: CUDA error"):
        saved.restore(root, State(model(0.0)))
