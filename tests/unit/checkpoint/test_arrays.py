"""Arrays of numpy in a state: with type, byte order and order in memory, wherever values are saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("numpy")

import numpy
import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.errors import CheckpointError, StateNotSerializable

KINDS = ("?", "b", "B", "<i2", ">i4", "<u2", "<u4", "<u8", "<i8", "<f2", ">f8", "<f4", "<c8", "<c16", "q")


def alike(found: Any, value: Any) -> bool:
    return (
        type(found) is type(value)
        and found.dtype == value.dtype
        and found.shape == value.shape
        and found.flags.f_contiguous == value.flags.f_contiguous
        and found.tobytes() == value.tobytes()
    )


def round_trip(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}

    def take(path: str, tensor: torch.Tensor) -> str:
        tensors[path] = tensor
        return path

    text = json.dumps(codec.encode(value, "x", take))
    assert codec.has_records_unknown_to_old_readers(codec.to_json_text(json.loads(text)))
    return codec.decode(json.loads(text), tensors.__getitem__)


@pytest.mark.parametrize("kind", KINDS)
def test_type_shape_and_order_come_back(kind: str) -> None:
    value = (numpy.arange(24).reshape(2, 3, 4) % 2).astype(kind)
    for one in (
        value,
        numpy.asfortranarray(value),
        value[:, ::2],
        value[0, 0, 0:0],
        value.reshape(-1)[3:4].reshape(()),
    ):
        found = round_trip(one)
        assert found.dtype == one.dtype and numpy.array_equal(found, one) and found.shape == one.shape
        assert found.dtype.byteorder == one.dtype.byteorder and found.flags.writeable
    assert alike(round_trip(numpy.asfortranarray(value)), numpy.asfortranarray(value))


def test_what_is_saved_is_what_it_was_then() -> None:
    value = numpy.zeros(3)
    record = codec.encode_numpy_array(value, lambda numbers: numbers)
    value += 1
    assert record["of"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "value",
    [
        numpy.array([object()]),
        numpy.array(["a"]),
        numpy.zeros(2, dtype="f4,i4"),
        numpy.ma.masked_array([1.0, 2.0], [True, False]),
        numpy.zeros(2, dtype="M8[s]"),
    ],
)
def test_other_arrays_are_refused_by_name(value: Any) -> None:
    with pytest.raises(StateNotSerializable, match=r"x\.values"):
        codec.encode({"values": value}, "x", lambda path, tensor: path)


def test_a_record_of_another_type_than_its_numbers_is_an_error() -> None:
    record = {"$": "array", "t": "O", "f": 0, "of": {"$": "tensor", "name": "x"}}
    with pytest.raises(CheckpointError, match="an array of O"):
        codec.decode(record, {"x": torch.zeros(2)}.__getitem__)


class Measured(torch.nn.Linear):
    """Arrays in its extra state."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.seen = numpy.zeros(0)

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


class Twister:
    """numpy's older generators have an array in their state."""

    def __init__(self, seed: int) -> None:
        self.numbers = numpy.random.RandomState(seed)

    def state_dict(self) -> Any:
        return {"numbers": self.numbers.get_state()}

    def load_state_dict(self, state: Any) -> None:
        self.numbers.set_state(state["numbers"])


def test_a_state_has_them_everywhere(shm: Path, tmp_path: Path) -> None:
    model, twister = Measured(), Twister(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.seen = numpy.arange(5.0)
    optimizer.state[model.weight]["norms"] = numpy.arange(3, dtype="f4")
    twister.numbers.normal(size=7)
    root = str(tmp_path / "root")
    extra: dict[str, Any] = {"curve": numpy.linspace(0, 1, 7), "steps": 3}
    with Manager(root) as manager:
        state = State(model, optimizer, extra=extra, twister=twister)
        manager.restore(state)
        assert manager.save(0, state, on_busy="wait").wait("durable", 60)
    fresh, other = Measured(), Twister(2)
    values: dict[str, Any] = {"curve": numpy.zeros(1), "steps": 0}
    second = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    with Manager(root) as manager:
        state = State(fresh, second, extra=values, twister=other)
        manager.restore(state)
        assert alike(values["curve"], extra["curve"]) and values["steps"] == 3
        assert alike(fresh.seen, model.seen)
        assert alike(second.state[fresh.weight]["norms"], optimizer.state[model.weight]["norms"])
        assert other.numbers.normal() == twister.numbers.normal()
        values["curve"] += 1  # the memory is the program's
        assert manager.save(1, state, on_busy="wait").wait("durable", 60)
