"""A device's memory is the model's: a save takes next to none of it, and neither does a restore."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, State  # noqa: E402
from hyperpod_kit.checkpoint.transfer import device  # noqa: E402

MIB = 1 << 20


def taken(work: Any) -> int:
    """Bytes of device memory that `work` takes beside what is held before it."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("overlap", [False, True], ids=["blocking", "overlapped"])
def test_a_gibibyte_is_saved_and_restored_in_little_memory_of_the_device(root: str, overlap: bool) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False) for _ in range(4))).cuda()
    want = [value.clone().cpu() for value in model.state_dict().values()]
    with Manager(root, overlap=overlap) as manager:
        manager.restore(State(model))
        for number in range(2):
            handle: Any = None

            def save(number: int = number) -> None:
                nonlocal handle
                handle = manager.save(number, State(model), on_busy="wait")
                manager.fence()

            assert taken(save) <= 64 * MIB
        assert handle.wait("durable", 120), handle
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    with Manager(root) as manager:
        assert taken(lambda: manager.restore(State(model))) <= 160 * MIB
    assert all(torch.equal(one, other.cpu()) for one, other in zip(want, model.state_dict().values()))


def test_a_digest_is_the_same_on_both_devices_and_takes_a_bounded_piece_of_memory() -> None:
    torch.manual_seed(1)
    tensors = [torch.randn(n * 37 + 1).to(kind) for n in range(40) for kind in (torch.float32, torch.bfloat16)]
    tensors += [torch.randn(1 << 24), torch.randn(300, 200).t(), torch.zeros(0)]
    there = [tensor.cuda() for tensor in tensors]
    assert torch.equal(device.digest_tensors(tensors), device.digest_tensors(there).cpu())
    large = [torch.randn(1 << 28, device="cuda")]  # 1 GiB
    assert taken(lambda: device.digest_tensors(large)) <= 512 * MIB
    before = device.digest_tensors(large).cpu()
    large[0].view(torch.int32)[12345678] ^= 1 << 17
    assert not torch.equal(before, device.digest_tensors(large).cpu())
