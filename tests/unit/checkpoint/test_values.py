"""What ranks tell each other: whatever arrives makes nothing but values."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hyperpod_kit.checkpoint.agent_client.startup import Epoch
from hyperpod_kit.checkpoint.ranks import wire_values
from hyperpod_kit.checkpoint.ranks.reason import Reason, Verdict
from hyperpod_kit.checkpoint.repository.format.layout import CheckpointId
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest
from hyperpod_kit.checkpoint.repository.records.identity import RunIdentity
from hyperpod_kit.checkpoint.restore.candidates import Candidate
from hyperpod_kit.checkpoint.tiers.base import HeldShard
from hyperpod_kit.errors import CheckpointError, DigestUnavailable, HyperpodKitError, RunIsOwned

plain = some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text() | some.binary()
keys = some.text() | some.integers() | some.tuples(some.integers(), some.text())
trees = some.recursive(
    plain,
    lambda inner: (
        some.lists(inner)
        | some.lists(inner).map(tuple)
        | some.sets(keys.filter(lambda key: isinstance(key, str)))
        | some.dictionaries(keys, inner)
    ),
    max_leaves=20,
)


def known(value: Any) -> Any:
    return wire_values.unpack(wire_values.pack(value), "rank 1")


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types."""
    return bool(one == other) and repr(one) == repr(other)


@given(trees)
def test_values_arrive_as_they_were(value: Any) -> None:
    assert same(known(value), value)


def test_everything_that_ranks_tell_each_other_can_be_told() -> None:
    held = HeldShard("memory", "seq-000001.step-0000000001.e1-abc123", (1, 2, "abc"), 2, "blake2b:p", "blake2b:r", 99)
    name = CheckpointId(1, 2, 3, "abc123")
    record = FileRecord("extra.json", 3, "blake2b:0")
    body = Manifest(
        "r",
        "id",
        1,
        2,
        3,
        2,
        "p",
        "xxh3",
        1 << 20,
        5,
        6,
        "t",
        (record, record),
        record,
        metrics={"loss": float("inf")},
        parent={"seq": 1, "step": 2},
        job={"mesh": {"dp": [1, 2]}},
        versions={"torch": "2"},
    )
    for value in (
        held,
        [held],
        name,
        Candidate(str(name), name, True, [{"memory": held}, {}], "why"),
        body,
        (body, b"\x00\xff" * 3000),
        RunIdentity("r", "i"),
        Epoch(1, 2),
        {((0, 1), 2, 3): b"x"},
    ):
        assert same(known(value), value)
    for verdict in Verdict:
        assert same(known(verdict), verdict) and same(known(Reason("bytes", verdict)), Reason("bytes", verdict))


@pytest.mark.parametrize(
    "err",
    [
        CheckpointError("no", hint="ls"),
        RunIsOwned("theirs"),
        FileNotFoundError(2, "No", "/x"),
        OSError(5, "I/O error"),
        DigestUnavailable("xxh3", "no library"),
    ],
)
def test_errors_keep_their_kind_and_their_words(err: Exception) -> None:
    found = known(err)
    assert type(found) is type(err) and str(found) == str(err)
    assert getattr(found, "hint", None) == getattr(err, "hint", None)
    if isinstance(err, HyperpodKitError):
        assert vars(found) == vars(err)


def test_what_nobody_said_could_be_told_is_refused_here() -> None:
    for value in (object(), os, len, KeyError("x"), [{"a": CheckpointError}]):
        with pytest.raises(TypeError):
            wire_values.pack(value)


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/hpk-was-unpickled",)


def of(value: Any, blobs: list[Any] | None = None) -> bytes:
    text = json.dumps({"protocol": wire_values.PROTOCOL, "value": value, "blobs": blobs or []}).encode()
    return len(text).to_bytes(8, "little") + text


def test_a_rank_of_the_release_before_is_named_and_nothing_of_it_is_unpickled() -> None:
    harm = pickle.dumps(Harm())
    for data in (len(harm).to_bytes(8, "little") + harm, harm, b"", b"\xff" * 4104):
        with pytest.raises(CheckpointError, match="rank 1 runs another release of hyperpod-kit"):
            wire_values.unpack(data, "rank 1")
    assert not os.path.exists("/tmp/hpk-was-unpickled")


@pytest.mark.parametrize(
    "data",
    [
        of({"is": "Popen", "of": ["sh"]}),
        of({"is": "str", "of": "x"}),
        of({"is": "Held", "of": ["memory"]}),
        of({"is": "Held", "of": ["memory", "a", {"tuple": [1, 2, 3]}, 2, "p", "r", 9]}),
        of({"is": "Held", "of": [{"dict": [[], []]}, "a", {"tuple": [1, 2, "c"]}, 2, "p", "r", 9]}),
        of({"is": "RunIdentity", "of": [1, 2]}),
        of({"is": "Fault", "of": 3}),
        of({"is": ["Held"], "of": []}),
        of({"error": "SystemExit", "of": {}}),
        of({"error": "CheckpointError", "of": {"message": 3}}),
        of({"error": "HyperpodKitError", "of": []}),
        of({"error": "OSError", "of": {"errno": [], "strerror": 1}}),
        of({"bytes": 0}),
        of({"bytes": 0}, [1 << 60]),
        of({"bytes": -1}, []),
        of({"bytes": True}, [0]),
        of({}),
        of({"dict": [["a"], []]}),
        of({"dict": [[{"dict": [[], []]}], [1]]}),
        of({"set": [[]]}),
        of({"tuple": 3}),
        of({"lambda": 1}),
        of({"tuple": [], "set": []}),
        of([{"is": "Held"}]),
        of(1, [{}]),
        of(1, ["x"]),
    ],
)
def test_what_no_rank_of_ours_tells_is_an_error_and_makes_nothing(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="rank 1 sent an invalid message"):
        wire_values.unpack(data, "rank 1")


@given(
    some.binary(max_size=300)
    | some.recursive(
        some.none() | some.booleans() | some.integers() | some.text(max_size=8),
        lambda inner: (
            some.lists(inner)
            | some.dictionaries(
                some.sampled_from(["is", "of", "tuple", "set", "dict", "bytes", "error", "Held", "x"]), inner
            )
        ),
    ).map(of)
)
def test_anything_is_a_value_or_a_checkpoint_error(data: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        wire_values.unpack(data, "rank 1")
