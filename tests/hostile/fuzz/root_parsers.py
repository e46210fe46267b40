"""What a checkpoint root says besides its manifests: that something was committed, what lies in an attempt without one,
a rank's own tree; and the values in a tree, as a restore makes them."""

from __future__ import annotations

import contextlib
import functools
import json
import struct
from pathlib import PurePosixPath
from random import Random
from typing import Any, Dict, List

import numpy
import torch

from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.repository.format import digest, layout, manifest, non_tensor_state, shard
from hyperpod_kit.checkpoint.repository.read import rank_extra_state
from hyperpod_kit.checkpoint.repository.records import commit_records, flush_note, leftovers
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError
from tests.hostile.fuzz.checkpoint_parsers import ATTEMPT, LAID, a_store
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import ODD_WORDS, a_json, some_bytes
from tests.hostile.fuzz.places import file_of, folder
from tests.hostile.fuzz.words import js

TENSORS: Dict[str, torch.Tensor] = {"w": torch.zeros(4)}


def _taken(path: str, tensor: torch.Tensor) -> str:
    TENSORS[path] = tensor
    return path


VALUES = codec.encode(
    {
        "numbers": [1, -0.0, float("inf"), complex(1, 2), numpy.float32(2.5), 2**200],
        "keys": {1: "a", (2, None): b"bytes"},
        "kinds": [torch.float32, torch.device("cpu"), PurePosixPath("/a"), frozenset((1, 2)), {3}, torch.Size((1, 2))],
        "weights": [torch.zeros(2), numpy.zeros((2, 2)), torch.nn.Parameter(torch.zeros(1))],
        "chosen": layout.CheckpointId(1, 2, 3, "abcd"),
    },
    "top",
    _taken,
    classes=True,
)
RECORDS: List[Any] = [
    {"$": "time", "c": "timedelta", "v": [1, 2, 3]},
    {"$": "time", "c": "datetime", "v": "2026-11-20T23:58:03+00:00"},
    {"$": "deque", "v": [1, {"$": "tuple", "v": []}], "most": 3},
    {"$": "enum", "c": "hyperpod_kit.checkpoint.repository.records.leftovers:Leftover", "n": "WHOLE", "v": "x"},
    {
        "$": "dataclass",
        "c": "hyperpod_kit.checkpoint.repository.records.commit_records:RootFacts",
        "v": {"records": []},
    },
    {"$": "object", "c": "tests.hostile.fuzz.root_parsers:Plain", "v": {"a": 1}},
    {"$": "dict", "c": "defaultdict", "f": "list", "v": [["a", 1]]},
    {"$": "dict", "c": "Counter", "v": [[1, 2]]},
    {"$": "subclass", "class": "torch:Tensor", "name": "w", "context": [None], "parts": {}},
    {"$": "array", "t": "<f4", "f": 0, "of": {"$": "tensor", "name": "w", "g": 0}},
]
TREE = {"model": VALUES, "extra": RECORDS}


class Plain:
    """An object that is its attributes."""


def read_values(data: bytes) -> None:
    """As a restore does, then as `peek` does."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as err:
        raise CheckpointError(f"no input: {err}") from None
    non_tensor_state.require_known_records_well_formed(tree)
    list(codec.tensor_names(tree))
    list(codec.iter_tensor_and_subclass_records(tree))
    codec.differing_saved_names(TREE, tree)
    codec.decode(tree, lambda name: None, plain=True)  # type: ignore[arg-type, return-value]
    codec.decode(tree, TENSORS.__getitem__)


OWN = js({"rng": {"$": "tuple", "v": [1, 2]}, "extra": {"n": 1}})
SHARD = bytes(64) + OWN + b" " * 40
PLACE = [64, len(OWN), digest.small_object_digest(OWN)]


def read_own_tree(data: bytes) -> None:
    """`data`: where the tree lies as JSON, a zero, and the file."""
    said, _, content = data.partition(b"\0")
    try:
        place = rank_extra_state.parse_location(json.loads(said))
    except (ValueError, TypeError, RecursionError) as err:
        raise CheckpointError(f"no place: {err}") from None
    rank_extra_state.read(a_store(f"{ATTEMPT}/{layout.shard_file(0)}", content), ATTEMPT, 0, place)


def an_own_tree(rng: Random) -> bytes:
    draw = rng.random()
    if draw < 0.4:
        return a_json(rng, [PLACE]) + b"\0" + SHARD
    if draw < 0.6:
        return js(PLACE) + b"\0" + some_bytes(rng, SHARD, [SHARD], [OWN])
    text = a_json(rng, [json.loads(OWN)])
    return js([64, len(text), digest.small_object_digest(text)]) + b"\0" + bytes(64) + text


ROW = {"event": "attempt", "from": ATTEMPT, "kind": "hyperpod-kit", "rejected": [{"attempt": ATTEMPT, "why": "torn"}]}
RESTORED = {"event": "restored", "from": ATTEMPT, "source": ATTEMPT, "tier": "memory+storage"}
START = {"format": "hpk-epoch/1", "first_seq": 3, "committed": ATTEMPT}
NOTE = {"format": flush_note.FORMAT, "host": "n1", "job": "7", "epoch": 2, "seq": 5, "step": 50, "bytes": 9}
NOTE.update(moved=4, beat=1, committed=ATTEMPT)
FILES: Dict[str, Dict[str, Any]] = {
    ".hpk/attempts.jsonl": ROW,
    ".hpk/verdicts/7.0.0/0.json": RESTORED,
    ".hpk/decisions/7.0.0.json": ROW,
    "epoch-000002.json": START,
    "flushes/n1-abcdef.json": NOTE,
    "LATEST": {"format": "hpk-latest/1", "attempt": ATTEMPT},
    ".hpk/state.json": {"format": layout.JOBS_ELSEWHERE_FORMAT, "state": "/nowhere"},
}
SEALED = ("epoch-000002.json", "flushes/n1-abcdef.json", "LATEST", ".hpk/state.json")


@functools.lru_cache(maxsize=1)
def _root(pid_place: str) -> PosixStore:
    for name, body in FILES.items():
        file_of(_sealed(name, body), f"root/{name}")
    return PosixStore(pid_place)


def _sealed(name: str, body: Dict[str, Any]) -> bytes:
    return manifest.seal_json(body) if name in SEALED else js(body) + b"\n"


def read_records(data: bytes) -> None:
    """`data`: the name of the file that is replaced, a zero, and its bytes."""
    name, _, content = data.partition(b"\0")
    file = name.decode("latin-1") if name.decode("latin-1") in FILES else "LATEST"
    store = _root(folder("root"))
    file_of(content, f"root/{file}")
    if file != ".hpk/state.json":
        file_of(b"", "root/.hpk/state.json")
    try:
        lost = commit_records.lost_commits_assuming_no_manifests(commit_records.collect_commit_evidence(store))
        for _, why in commit_records.summarize_lost_commits(lost):
            assert why.isprintable(), why
        commit_records.lost_commits_assuming_no_manifests(
            commit_records.collect_commit_evidence(store), kit_checkpoints=False
        )
    finally:
        file_of(_sealed(file, FILES[file]), f"root/{file}")


def some_records(rng: Random) -> bytes:
    name = rng.choice(list(FILES))
    if rng.random() < 0.3:
        seed = _sealed(name, FILES[name])
        return (
            name.encode()
            + b"\0"
            + some_bytes(rng, seed, [seed], [word.encode("utf-8", "replace") for word in ODD_WORDS])
        )
    made = a_json(rng, [FILES[name]])
    if name in SEALED:
        with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):  # what no encoder makes
            made = manifest.seal_json(json.loads(made))
    return name.encode() + b"\0" + made


HEAD = LAID.header(2, 5, 50)
WHOLE = HEAD + bytes(LAID.size - len(HEAD) - 1) + b"x"


def read_leftovers(data: bytes) -> None:
    store = a_store()
    store._objects.update({f"{ATTEMPT}/{layout.shard_file(rank)}": data for rank in range(2)})
    for run in ("", "0" * 32):
        leftovers.classify_leftover(store, ATTEMPT, run)


def some_leftovers(rng: Random) -> bytes:
    if rng.random() < 0.2:
        return some_bytes(rng, WHOLE, [WHOLE], [b'"data_offsets":', struct.pack("<Q", 2**63)])
    text = a_json(rng, [json.loads(HEAD[8:])])
    text += b" " * (-(8 + len(text)) % shard.ALIGN)
    return struct.pack("<Q", len(text)) + text + WHOLE[len(HEAD) :]


PARSERS = [
    Parser(
        "checkpoint: values of a tree",
        read_values,
        (CheckpointError,),
        lambda rng: a_json(rng, [TREE, RECORDS, *RECORDS]),
        (js(VALUES),),
    ),
    Parser(
        "checkpoint: own tree in a shard", read_own_tree, (CheckpointError,), an_own_tree, (js(PLACE) + b"\0" + SHARD,)
    ),
    Parser(
        "checkpoint: records of commits",
        read_records,
        (CheckpointError, OSError),
        some_records,
        tuple(name.encode() + b"\0" + _sealed(name, FILES[name]) for name in FILES if name != ".hpk/state.json"),
    ),
    Parser("checkpoint: attempt without a manifest", read_leftovers, (), some_leftovers, (WHOLE,)),
]
