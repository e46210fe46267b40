"""Conjugate and negative views: a flag says that their numbers are others than those in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.restore import replicate

SIZES = [pytest.param(3, id="small"), pytest.param(200_000, id="copied by numpy")]


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "root")


def built(seed: int, size: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    numbers = torch.randn(size, dtype=torch.complex64)
    return {
        "conjugate": numbers.conj(),
        "as it is": numbers,
        "negative": torch._neg_view(torch.randn(size)),
        "imaginary": torch.randn(size, dtype=torch.complex64).conj().imag,
        "both": torch._neg_view(torch.randn(size, dtype=torch.complex64).conj()),
    }


class Buffers(torch.nn.Module):
    def __init__(self, seed: int, size: int) -> None:
        super().__init__()
        for name, tensor in built(seed, size).items():
            self.register_buffer(name.replace(" ", "_"), tensor)
        self.weight = torch.nn.Parameter(torch.randn(size, dtype=torch.complex64).conj())


def save(root: str, state: State, **options: Any) -> None:
    with Manager(root, **options) as manager:
        manager.restore(state)
        assert manager.save(0, state, on_busy="wait").wait("durable", 60)


def restore(root: str, state: State) -> None:
    with Manager(root) as manager:
        manager.restore(state)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_module_gets_the_numbers_that_it_had(root: str, size: int, overlap: bool) -> None:
    saved, restored = Buffers(0, size), Buffers(1, size)
    save(root, State(saved), overlap=overlap)
    restore(root, State(restored))
    want, found = saved.state_dict(), restored.state_dict()
    assert all(torch.equal(found[name], value) for name, value in want.items())
    assert found["conjugate"].is_conj() and found["weight"].is_conj() and found["negative"].is_neg()


@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_tensor_and_its_conjugate_are_two(root: str, size: int, targets: bool) -> None:
    want: dict[str, Any] = built(0, size)
    found: dict[str, Any] = built(1, size) if targets else {}
    save(root, State(extra=want))
    restore(root, State(extra=found))
    assert all(torch.equal(found[name], value) for name, value in want.items())


def test_what_another_rank_sends_fills_a_part_of_a_conjugate() -> None:
    want, live = torch.randn(8, dtype=torch.complex64), torch.zeros(8, dtype=torch.complex64).conj()
    piece: Any = SimpleNamespace(tensor=live, spec=SimpleNamespace(nbytes=want.nbytes, name="live"))
    data = want.view(torch.uint8)
    for begin in (0, 32):
        part = replicate._ShareRange(piece, begin, begin + 32)
        replicate._copy_bucket_into_pieces([part], data[begin : begin + 32])
    assert torch.equal(live, want)
