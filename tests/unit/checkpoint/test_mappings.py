"""Dicts of other classes, sizes and parameters in what a program holds or an object gives: of the same class again."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.errors import CheckpointError


class ByAttribute(dict[Any, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class Made(dict[Any, Any]):
    """Code of its own makes it: nobody calls that."""

    def __new__(cls, *items: Any) -> Any:
        return super().__new__(cls)


class GivesAndTakes:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


VALUES = [
    collections.Counter("abca"),
    collections.OrderedDict([("z", 1), ("a", torch.ones(2))]),
    collections.defaultdict(int, {1: 2}),
    collections.defaultdict(list, a=[torch.zeros(1)]),
    collections.defaultdict(None, a=1),
    ByAttribute(a=1, b=ByAttribute(c=[2.5])),
    torch.Size([2, 3]),
    {"$": 1, "c": "collections", "f": [ByAttribute(), torch.Size([])]},
]


def alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        factories = [each.default_factory for each in (one, other) if isinstance(each, collections.defaultdict)]
        return (
            len(set(factories)) < 2
            and list(one) == list(other)
            and all(alike(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def through_a_checkpoint(value: Any, root: str) -> tuple[Any, Any]:
    """What an object is given, and what appears in `extra`."""
    with Manager(root) as manager:
        state = State(holder=GivesAndTakes(value), extra={"value": value})
        manager.restore(state)
        assert manager.save(0, state, on_busy="wait").wait("durable", 60)
    holder, extra = GivesAndTakes(), dict[str, Any]()
    with Manager(root) as manager:
        manager.restore(State(holder=holder, extra=extra))
    return holder.value, extra["value"]


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "root")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_the_class_comes_back(root: str, value: Any) -> None:
    assert all(alike(found, value) for found in through_a_checkpoint(value, root))


def test_a_dict_that_is_there_stays_the_object_that_it_is(root: str) -> None:
    seen = collections.Counter("ab")
    for _ in range(2):
        with Manager(root) as manager:
            state = State(extra={"seen": seen})
            manager.restore(state)
            manager.save(0, state, on_busy="wait")
            seen["c"] += 1
    assert seen == collections.Counter("abc") and type(seen) is collections.Counter


def test_tensors_require_a_gradient_as_they_did(root: str) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    value = [weight, weight.detach(), weight * 2, torch.nn.Parameter(torch.ones(1), requires_grad=False)]
    for found in through_a_checkpoint(value, root):
        assert [type(one) for one in found] == [torch.nn.Parameter, torch.Tensor, torch.Tensor, torch.nn.Parameter]
        assert [one.requires_grad for one in found] == [True, False, True, False]
        assert all(one.is_leaf and torch.equal(one, was) for one, was in zip(found, value, strict=True))


@pytest.mark.parametrize("value", [collections.defaultdict(lambda: 0, a=1), Made(), collections.UserDict])
def test_others_say_nothing_of_their_class(value: Any) -> None:
    assert codec.record_fields_naming_class(value if isinstance(value, dict) else {}) == {}


def test_a_class_that_is_another_one_now_is_an_error() -> None:
    for name in (f"{__name__}:Made", "collections:UserDict", "nowhere:Nothing"):
        record = {"$": "dict", "v": [["a", 1]], "c": name}
        with pytest.raises(CheckpointError, match=name):
            codec.decode(record, lambda name: torch.zeros(1))
    assert codec.decode(record, lambda name: torch.zeros(1), plain=True) == {"a": 1}
