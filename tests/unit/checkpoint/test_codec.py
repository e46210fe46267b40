from __future__ import annotations

import json
import math
from collections import OrderedDict
from enum import Enum

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import codec, partition  # noqa: E402
from hyperpod_kit.checkpoint.repository.shard import TensorSpec  # noqa: E402
from hyperpod_kit.errors import CheckpointError, StateNotSerializable  # noqa: E402


def round_trip(value: object) -> object:
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(codec.encode(value, "top", tensors), allow_nan=False)
    return codec.decode(json.loads(text), tensors.__getitem__)


def test_typed_values_come_back_as_they_were() -> None:
    value = {"a": [1, 2.5, True, None, "x"], "t": (1, (2,)), "b": b"\x00\xff", "inf": -math.inf, 3: {"$": "tensor"},
             "tiny": 5e-324, "e": {}, "big": 2**200}
    assert round_trip(value) == value
    assert math.isnan(round_trip(float("nan")))  # type: ignore[arg-type]
    assert type(round_trip((1,))) is tuple and type(round_trip(True)) is bool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.float8_e4m3fn,
                                   torch.complex64, torch.uint16])
def test_tensors_keep_type_and_shape(dtype: torch.dtype) -> None:
    tensor = torch.zeros(2, 3).to(dtype)
    got = round_trip({"x": [tensor]})["x"][0]  # type: ignore[index]
    assert got.dtype == dtype and got.shape == (2, 3)


class Color(Enum):
    RED = 1


@pytest.mark.parametrize("bad", [Color.RED, object(), {1, 2}, lambda: 0, 1j, torch.zeros(2, device="meta"),
                                 torch.zeros(2).to_sparse(), torch.zeros(2, dtype=torch.complex128)])
def test_what_cannot_be_held_is_refused_with_its_path(bad: object) -> None:
    with pytest.raises(StateNotSerializable) as caught:
        round_trip(OrderedDict(a=[0, {"deep": bad}]))
    assert caught.value.path == "top.a.1.deep"


def test_two_paths_that_look_the_same_are_refused() -> None:
    with pytest.raises(StateNotSerializable, match="second tensor"):
        round_trip({"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}})
    with pytest.raises(CheckpointError, match="kind 'pickle'"):
        codec.decode({"$": "pickle", "v": ""}, {}.__getitem__)


def test_every_byte_has_one_owner_and_the_load_is_balanced() -> None:
    specs = [TensorSpec(f"w{n}", "F32", (n * 37 % 100 + 1, 64)) for n in range(60)]
    owners = partition.owners(specs, 4, frozenset({"w3"}))
    assert set(owners) == {spec.name for spec in specs} and owners["w3"] == 0
    load = [sum(s.nbytes for s in specs if owners[s.name] == rank) for rank in range(4)]
    assert max(load) - min(load) <= max(s.nbytes for s in specs)
    assert partition.fingerprint(specs, 4, frozenset()) == partition.fingerprint(specs[::-1], 4, frozenset())
    assert partition.fingerprint(specs, 4, frozenset()) != partition.fingerprint(specs, 2, frozenset())
