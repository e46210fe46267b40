from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections import OrderedDict, deque
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest
from zoneinfo import ZoneInfo

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Restored, State
from hyperpod_kit.checkpoint.capture import replica_assignment
from hyperpod_kit.checkpoint.codec import codec, typed_values
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.state.tensors import Collector, TensorPiece, WalkCache
from hyperpod_kit.data import Last
from hyperpod_kit.errors import CheckpointError, StateNotSerializable


def no_tensor(name: str) -> torch.Tensor:
    raise AssertionError(name)


def local() -> Any:
    class Pair(NamedTuple):
        x: int

    return Pair(1)


def round_trip(value: object) -> object:
    collector = Collector(Ranks(), WalkCache())
    tree = codec.encode(value, "top", collector.add_tensor)
    pieces = {piece.spec.name: piece.tensor for piece in collector.finish_and_add_shared_names(tree).pieces}
    assert set(codec.tensor_names(tree)) == set(pieces)
    return codec.decode(json.loads(json.dumps(tree, allow_nan=False)), pieces.__getitem__)


def test_typed_values_come_back_as_they_were() -> None:
    value = {
        "a": [1, 2.5, True, None, "x"],
        "t": (1, (2,)),
        "b": b"\x00\xff",
        "inf": -math.inf,
        3: {"$": "tensor"},
        "tiny": 5e-324,
        "e": {},
        "big": 2**200,
        "z": complex(-0.0, math.inf),
    }
    assert round_trip(value) == value
    assert math.copysign(1, round_trip(complex(-0.0, 1)).real) == -1  # type: ignore[attr-defined]
    assert math.isnan(round_trip(float("nan")))  # type: ignore[arg-type]
    assert type(round_trip((1,))) is tuple and type(round_trip(True)) is bool


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.bool,
        torch.int64,
        torch.float8_e4m3fn,
        torch.complex64,
        torch.complex128,
        torch.uint16,
    ],
)
def test_tensors_keep_type_and_shape(dtype: torch.dtype) -> None:
    tensor = torch.zeros(2, 3).to(dtype)
    got = round_trip({"x": [tensor]})["x"][0]  # type: ignore[index]
    assert got.dtype == dtype and got.shape == (2, 3)


@pytest.mark.parametrize("kind", ["bool", "int8", "int64", "uint64", "float16", "float32", "float64", "complex64"])
def test_numpy_numbers_keep_type_and_bits(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    values = [getattr(numpy, kind + ("_" if kind == "bool" else ""))(value) for value in (0, 1, 100)]
    if "float" in kind or "complex" in kind:
        values += [numpy.array(float("nan")).astype(kind)[()], numpy.array(-0.0).astype(kind)[()]]
    found = round_trip({"v": values, values[1]: "key"})
    assert found[values[1]] == "key"  # type: ignore[index]
    for before, after in zip(values, found["v"], strict=True):  # type: ignore[index]
        assert type(after) is type(before) and after.tobytes() == before.tobytes()


class Color(Enum):
    RED = 1


class Stage(IntEnum):
    TWO = 2


class Metres(float):
    pass


class Point(NamedTuple):
    x: float
    where: torch.device


@dataclasses.dataclass(frozen=True)
class Schedule:
    warmup: int
    kind: Color
    seen: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.warmup >= 0, "a restore calls no code of a class"


class Projector:
    """An object that is its attributes, as optimizers keep them beside a parameter."""

    def __init__(self, rank: int) -> None:
        assert rank >= 0, "a restore calls no code of a class"
        self.rank = rank
        self.basis: Any = None

    def __eq__(self, other: object) -> bool:
        return type(other) is Projector and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class WithSlots:
    __slots__ = ("rank",)


class WithReduce:
    def __reduce__(self) -> Any:
        raise AssertionError("a save calls no code of a class")


class WithStateDict:
    def state_dict(self) -> Any:
        return {}


@pytest.mark.parametrize("value", [WithSlots(), WithReduce(), WithStateDict(), ValueError(), object(), sys, len])
def test_an_object_that_is_more_than_its_attributes_is_refused(value: Any) -> None:
    with pytest.raises(StateNotSerializable, match=r"x\.a"):
        codec.encode({"a": value}, "x", lambda *_: "")


@pytest.mark.parametrize(
    "value",
    [
        Stage.TWO,
        Color.RED,
        {1, 2, "x"},
        frozenset([(1, 2), None]),
        deque([1, {"a": 2.5}], maxlen=7),
        Path("/a/b"),
        PurePosixPath("c"),
        torch.bfloat16,
        torch.channels_last,
        torch.strided,
        torch.device("cuda", 1),
        date(2026, 1, 2),
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2))),
        time(3, 4, 5),
        timedelta(days=-1, microseconds=3),
        Point(1.5, torch.device("cpu")),
        Schedule(3, Color.RED, (1, 2)),
        Projector(4),
        {Color.RED: 1, torch.float16: 2, None: 3},
    ],
    ids=lambda value: (
        f"{type(value).__name__} {value}" if not isinstance(value, (set, frozenset)) else type(value).__name__
    ),
)
def test_values_of_other_kinds_come_back_as_they_were(value: Any) -> None:
    found = round_trip({"a": [value]})["a"][0]  # type: ignore[index]
    assert found == value and type(found) is type(value)
    assert getattr(found, "maxlen", None) == getattr(value, "maxlen", None)


def test_values_hold_tensors() -> None:
    projector = Projector(2)
    projector.basis = torch.ones(3)
    assert torch.equal(round_trip({"o": projector})["o"].basis, torch.ones(3))  # type: ignore[index]
    found: Any = round_trip({"q": deque([torch.ones(2)]), "p": Point(torch.zeros(1), torch.device("cpu"))})  # type: ignore[arg-type]
    assert torch.equal(found["q"][0], torch.ones(2)) and torch.equal(found["p"].x, torch.zeros(1))


def test_the_text_of_a_set_is_the_same_in_every_process() -> None:
    names = [f"name{number}" for number in range(50)]
    texts = {codec.to_json_text(codec.encode(set(order), "x", lambda *_: "")) for order in (names, names[::-1])}
    assert len(texts) == 1


def test_a_class_is_looked_up_and_never_imported() -> None:
    record = {"$": "enum", "c": "antigravity:Fly", "n": "ONE", "v": 1}
    with pytest.raises(CheckpointError, match="antigravity:Fly") as caught:
        codec.decode(record, no_tensor)
    assert caught.value.hint == "import antigravity before the restore" and "antigravity" not in sys.modules
    assert codec.decode(record, no_tensor, plain=True) == 1
    for other in ("os:system", "pathlib:Path", f"{__name__}:Metres"):
        for kind in ("enum", "named", "dataclass", "object"):
            with pytest.raises(CheckpointError):
                codec.decode(
                    {"$": kind, "c": other, "n": "x", "v": {} if kind in ("dataclass", "object") else [1]}, no_tensor
                )
    with pytest.raises(CheckpointError, match=r"torch\.load"):
        codec.decode({"$": "torch", "v": "load"}, no_tensor)


def test_a_public_class_is_written_as_its_packages_and_read_by_the_module_that_had_it() -> None:
    restored = Restored(7, 1, 2, "e000001", "memory", 0.5, 3)
    for value, name, earlier in (
        (restored, "hyperpod_kit.checkpoint:Restored", "hyperpod_kit.checkpoint.results:Restored"),
        (Last.PAD, "hyperpod_kit.data:Last", "hyperpod_kit.data.position:Last"),
    ):
        record = codec.encode(value, "x", lambda *_: "")
        assert record["c"] == name and codec.decode(record, no_tensor) == value
        assert codec.decode({**record, "c": earlier}, no_tensor) == value
    # A module of that name is a package now, which does not have the class.
    assert typed_values.imported_class_by_name("hyperpod_kit.checkpoint.state:State") is State
    with pytest.raises(CheckpointError, match=r"hyperpod_kit\.checkpoint\.results:subprocess"):
        typed_values.imported_class_by_name("hyperpod_kit.checkpoint.results:subprocess")


def test_an_enum_that_was_renamed_is_known_by_its_value() -> None:
    saved = codec.encode(Color.RED, "x", lambda *_: "")
    assert codec.decode({**saved, "n": "SCARLET"}, no_tensor) is Color.RED
    with pytest.raises(CheckpointError, match="SCARLET or the value 7"):
        codec.decode({**saved, "n": "SCARLET", "v": 7}, no_tensor)


@pytest.mark.parametrize(
    ("bad", "cure"),
    [
        (Metres(1), "float(x)"),
        (torch.Generator(), "x.get_state()"),
        (local(), "tuple(x)"),
        (Enum("Here", "ONE").ONE, "x.value"),  # type: ignore[attr-defined]
        (bytearray(b"x"), "bytes(x)"),
        (datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")), "can be rebuilt"),
        (torch.nn.Linear(1, 1), "State(..., name=x)"),
        (object(), "can be rebuilt"),
    ],
)
def test_the_refusal_of_a_value_says_what_to_save_instead(bad: object, cure: str) -> None:
    with pytest.raises(StateNotSerializable) as caught:
        round_trip({"a": bad})
    assert "top.a" in str(caught.value.hint) and cure in str(caught.value.hint)


def test_a_container_that_lies_in_itself_is_refused_with_both_paths() -> None:
    inner: list[object] = []
    value = {"a": {"b": inner}}
    inner.append(value["a"])
    with pytest.raises(StateNotSerializable, match=r"top\.a\.b\.0 is a dict that contains itself, as top\.a,"):
        round_trip(value)
    deep: list[object] = []
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(StateNotSerializable, match="inside 200 others"):
        round_trip(deep)
    twice = [1]
    assert round_trip([twice, twice]) == [[1], [1]]


@pytest.mark.parametrize(
    "bad", [object(), Metres(2), lambda: 0, torch.zeros(2, device="meta"), torch.zeros(2).to_sparse()]
)
def test_what_cannot_be_held_is_refused_with_its_path(bad: object) -> None:
    with pytest.raises(StateNotSerializable) as caught:
        round_trip(OrderedDict(a=[0, {"deep": bad}]))
    assert caught.value.path == "top.a.1.deep"


def test_two_paths_that_look_the_same_are_two_tensors() -> None:
    value = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, 1: torch.full((1,), 2.0), "1": torch.full((1,), 3.0)}
    found: Any = round_trip(value)
    assert [float(one) for one in (found["a.b"], found["a"]["b"], found[1], found["1"])] == [0, 1, 2, 3]
    with pytest.raises(CheckpointError, match="kind 'pickle'"):
        codec.decode({"$": "pickle", "v": ""}, no_tensor)


def test_every_byte_has_one_owner_and_the_load_is_balanced() -> None:
    def pieces(holders: tuple[int, ...], names: str) -> list[TensorPiece]:
        return [
            TensorPiece(
                TensorSpec(f"{names}{n}", "F32", (n * 37 % 100 + 1, 64)),
                torch.empty(0),
                (1, 4),
                None,
                False,
                n == 3,
                holders,
            )
            for n in range(60)
        ]

    both = pieces((), "w") + pieces((2, 5, 8, 11), "s")
    owners = replica_assignment.assign_writing_replica_indexes(both)
    assert owners == replica_assignment.assign_writing_replica_indexes(both[::-1])
    assert set(owners) == {piece.spec.name for piece in both} and owners["w3"] == owners["s3"] == 0
    for names in "ws":
        load = [
            sum(p.spec.nbytes for p in both if owners[p.spec.name] == rank and p.spec.name[0] == names)
            for rank in range(4)
        ]
        assert max(load) - min(load) <= max(p.spec.nbytes for p in both)
