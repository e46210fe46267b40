"""An object of a class with a `__del__` is neither saved nor made again: that runs with attributes of whoever wrote the
checkpoint. `tempfile` and `numpy` have such classes, which remove what their attributes name."""

from __future__ import annotations

import dataclasses
import gc
from collections import namedtuple
from pathlib import Path
from typing import Any, Dict, List

import pytest

pytest.importorskip("torch")

import numpy.lib.npyio  # noqa: F401 - the class is looked up among what is imported

from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.errors import CheckpointError, StateNotSerializable

ENDED: List[str] = []


class Ending:
    def __del__(self) -> None:
        ENDED.append(type(self).__name__)


class EndingObject(Ending):
    pass


@dataclasses.dataclass
class EndingRecord(Ending):
    place: str = ""


class EndingTuple(namedtuple("EndingTuple", "place"), Ending):
    pass


class EndingDict(Dict[str, Any]):
    def __del__(self) -> None:
        ENDED.append(type(self).__name__)


def _refused(record: Dict[str, Any]) -> None:
    for plain in (False, True):
        with pytest.raises(CheckpointError):
            codec.decode(record, lambda name: pytest.fail(name), plain=plain)
        gc.collect()


@pytest.mark.parametrize(
    "kind, values, name",
    [
        ("tempfile:_TemporaryFileCloser", {"file": 1, "delete": True}, "name"),
        ("numpy.lib.npyio:DataSource", {"_istmpdest": True}, "_destpath"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_file_is_removed(tmp_path: Path, kind: str, values: Dict[str, Any], name: str) -> None:
    kept = tmp_path / "kept"
    if name == "name":
        kept.write_text("x")
    else:
        kept.mkdir()
    _refused({"$": "object", "c": kind, "v": {**values, name: str(kept)}})
    assert kept.exists()


@pytest.mark.parametrize(
    "record",
    [
        {"$": "object", "c": "EndingObject", "v": {}},
        {"$": "dataclass", "c": "EndingRecord", "v": {"place": "/"}},
        {"$": "named", "c": "EndingTuple", "v": ["/"]},
        {"$": "dict", "c": "EndingDict", "v": [["place", "/"]]},
    ],
    ids=lambda record: record["$"],
)
def test_no_code_of_a_class_runs_at_its_end(record: Dict[str, Any]) -> None:
    ENDED.clear()
    _refused({**record, "c": f"{__name__}:{record['c']}"})
    assert ENDED == []


@pytest.mark.parametrize(
    "value", [EndingObject(), EndingRecord(), EndingTuple("/")], ids=lambda value: type(value).__name__
)
def test_none_is_saved(value: Any) -> None:
    with pytest.raises(StateNotSerializable):
        codec.encode({"a": value}, "top", lambda path, tensor: path)


def test_a_dict_with_an_end_of_its_own_is_saved_as_a_plain_one() -> None:
    saved = codec.encode(EndingDict(a=1), "top", lambda path, tensor: path, classes=True)
    assert codec.decode(saved, lambda name: pytest.fail(name)) == {"a": 1}
