"""Tensor subclasses: saved by the tensors that they are made of, filled where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._pytree import tree_map

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.errors import CheckpointError
from tests.unit.checkpoint import saved


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


class Scaled(torch.Tensor):
    """Whole numbers and a scale for each block of them; looks like float32."""

    extra: Any

    @staticmethod
    def __new__(cls, whole: Any, scale: Any, bits: int = 8, extra: Any = None) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=torch.float32, device=whole.device)

    def __init__(self, whole: Any, scale: Any, bits: int = 8, extra: Any = None) -> None:
        self.whole, self.scale, self.bits, self.extra = whole, scale, bits, extra

    def __tensor_flatten__(self) -> Any:
        return ["whole", "scale", *(["extra"] if self.extra is not None else [])], (self.bits, torch.float32)

    @staticmethod
    def __tensor_unflatten__(parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return Scaled(parts["whole"], parts["scale"], context[0], parts.get("extra"))

    def plain(self) -> Any:
        return self.whole.float() * self.scale.repeat_interleave(self.whole.numel() // self.scale.numel()).view(
            self.whole.shape
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own stub lacks the function
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Scaled(args[0].whole, args[0].scale, args[0].bits, args[0].extra)
        args, kwargs = tree_map(lambda x: x.plain() if isinstance(x, Scaled) else x, (args, kwargs or {}))
        return function(*args, **kwargs)


class Named(torch.nn.Parameter):
    """A parameter that knows more than its numbers, as geoopt's: no operation is another one."""

    def norm_of_it(self) -> Any:
        return self.norm()


def made(number: int, bits: int = 8, extra: bool = False) -> Any:
    whole = torch.full((4, 6), number, dtype=torch.int8)
    return Scaled(whole, torch.full((3,), float(number)), bits, torch.tensor(float(number)) if extra else None)


def job(number: int, **options: Any) -> Any:
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(made(number, **options))
    model.tied = model.w
    model.register_buffer("b", made(number + 1))
    model.n = Named(torch.full((2,), float(number)))
    return model


def test_they_are_filled_where_they_lie(root: str) -> None:
    saved.save(root, State(job(3)))
    other = job(7)
    whole, scale = other.w.whole, other.w.scale
    saved.restore(root, State(other))
    assert other.w.whole is whole and other.w.scale is scale
    assert (whole == 3).all() and (scale == 3).all() and (other.b.whole == 4).all() and (other.n == 3).all()
    assert type(other.n) is Named and other.tied is other.w


def test_each_save_has_what_is_there_then(root: str) -> None:
    model = job(1)
    with Manager(root) as manager:
        manager.restore(State(model))
        state = State(model)
        for step in range(3):
            model.w.whole.fill_(step)
            if step == 1:
                model.w.scale = torch.full((3,), 9.0)  # another tensor under the same name
            assert manager.save(step, state, on_busy="wait").wait("durable", 60)
    other = job(7)
    saved.restore(root, State(other))
    assert (other.w.whole == 2).all() and (other.w.scale == 9).all()


@pytest.mark.parametrize("here", ["none", "a tensor like it"])
def test_in_extra(root: str, here: str) -> None:
    saved.save(root, State(extra={"q": [made(3)], "x": 1}, rng=False))
    extra: dict[str, Any] = {} if here == "none" else {"q": [made(5)]}
    held = extra["q"][0] if extra else None
    saved.restore(root, State(extra=extra, rng=False))
    found = extra["q"][0]
    assert type(found) is Scaled and (found.whole == 3).all() and (found.scale == 3).all() and found.bits == 8
    assert held is None or found is held


def test_a_part_that_comes_later(root: str) -> None:
    saved.save(root, State(job(3, extra=True)))
    other = job(7)
    saved.restore(root, State(other))
    assert float(other.w.extra) == 3
    saved.save(f"{root}-without", State(job(4)))
    saved.restore(f"{root}-without", State(other))
    assert other.w.extra is None and (other.w.whole == 4).all()


def test_another_class_or_making_is_refused_by_name(root: str) -> None:
    saved.save(root, State(job(3)))
    with pytest.raises(CheckpointError, match=r"model\.w, a .*:Scaled, was made with .*8.* and with .*4"):
        saved.restore(root, State(job(7, bits=4)))
    other = job(7)
    other.w = other.tied = torch.nn.Parameter(torch.zeros(4, 6))
    with pytest.raises(CheckpointError, match=r"model\.w is a .*:Scaled in the checkpoint, and a plain tensor in"):
        saved.restore(root, State(other))
