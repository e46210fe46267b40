"""Capture from a device and back: bit-equal, blocking and overlapped, with registered slots and small tensors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Latest, Manager, State  # noqa: E402
from hyperpod_kit.checkpoint.transfer import device  # noqa: E402
from tests.support import wait  # noqa: E402


def build(seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512), *(torch.nn.Linear(512, 512) for _ in range(20))]
    model = torch.nn.Sequential(*layers).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model: Any, optimizer: Any) -> None:
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def holds(model: Any, optimizer: Any) -> list[Any]:
    torch.cuda.synchronize()
    state = [value.clone() for values in optimizer.state_dict()["state"].values() for value in values.values()]
    return [value.clone() for value in model.state_dict().values()] + state


@pytest.mark.parametrize("overlap", [False, True])
def test_what_was_saved_is_restored_bit_by_bit_while_training_went_on(root: str, overlap: bool) -> None:
    model, optimizer = build(0)
    state, manager = State(model, optimizer), Manager(root, overlap=overlap)
    manager.restore(state)
    step(model, optimizer)
    for number in range(3):
        want = holds(model, optimizer)
        handle = manager.save(number, state, on_busy="wait")
        step(model, optimizer)  # its forward moves running statistics, its update waits for the fence
    assert handle.wait("durable", 60), handle
    assert manager.close()

    model, optimizer = build(1)
    state, manager = State(model, optimizer), Manager(root)
    assert manager.restore(state).next_step == 3
    got = holds(model, optimizer)
    assert len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    assert manager.close()


def test_slots_are_registered_with_the_driver_and_given_back(root: str) -> None:
    model, optimizer = build(0)
    state, manager = State(model, optimizer), Manager(root)
    manager.restore(state)
    step(model, optimizer)
    manager.save(0, state)
    wait.until(lambda: len(device._registered) == 2, what="the second slot, which is made while training goes on")
    manager.close()
    assert not device._registered


def test_small_tensors_are_gathered_and_land_in_their_places() -> None:
    sources = [
        torch.randn(n + 1, device="cuda").to(dtype) for n in range(300) for dtype in (torch.float32, torch.bfloat16)
    ] + [torch.randn(1 << 20, device="cuda")]
    targets = [torch.zeros(source.shape, dtype=source.dtype) for source in sources]
    copy = device.CudaDevice(torch.device("cuda", 0)).start(
        [(target, source, False) for target, source in zip(targets, sources, strict=True)]
    )
    copy.wait_then_report_changes_and_digests()
    for view, data in copy.small:
        view.view(-1).view(torch.uint8).copy_(data)
    assert len(copy.small) == 600
    assert all(torch.equal(t, s.cpu()) for t, s in zip(targets, sources, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("way", ["in place", "data", "kernel"])
def test_what_changes_during_an_overlapped_copy_fails_the_save(root: str, way: str) -> None:
    model, optimizer = build(0)
    other = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    large = torch.nn.Parameter(torch.zeros(256 << 20, device="cuda"))
    model.large = large
    state = State(model, optimizer)
    manager = Manager(root, overlap=True, keep=Latest(2))
    manager.restore(state)
    step(model, optimizer)
    assert manager.save(0, state, on_busy="wait").wait("durable", 60)
    model[0](torch.ones(1, 512, device="cuda")).sum().backward()
    other.step()  # the first one makes its state, which takes longer than a copy
    torch.cuda.synchronize()
    # The copy and the write both wait for this in the device, where the call does not wait for it too.
    torch.cuda._sleep(1_000_000_000)  # clock cycles
    handle = manager.save(1, state, on_busy="wait")
    if way == "in place":
        with torch.no_grad():
            large.add_(1)
    elif way == "data":
        large.data.add_(1)
    else:
        other.step()  # an optimizer that the State does not have
    manager.fence()
    assert not handle.wait("durable", 60) and handle.state == "failed", handle
    assert "changed while they were copied" in str(handle.reason)
    for number in range(2, 12):
        step(model, optimizer)
        handle = manager.save(number, state, on_busy="wait")
        model(torch.randn(64, 512, device="cuda"))
        assert handle.wait("durable", 60), handle
    assert manager.close()
