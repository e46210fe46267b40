"""Checkpoints that are read by the names of their tensors: what `checkpoint diff`, `checkpoint get` and `load_weights`
take from a root. An input says what the tree is, where its tensors lie and what the manifest says of it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import zlib
from random import Random
from typing import Any, Dict, List

import torch

from hyperpod_kit.checkpoint.diffing import command
from hyperpod_kit.checkpoint.diffing.compare import CheckpointAt, diff
from hyperpod_kit.checkpoint.repository import tensor_export
from hyperpod_kit.checkpoint.repository.format import compact_index, digest, index, layout, manifest
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.checkpoint.weights import weight_sources
from hyperpod_kit.errors import CheckpointError, StorageUnreadable, UsageError
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import a_json
from tests.hostile.fuzz.places import folder

ATTEMPTS = [str(layout.CheckpointId(seq, 10 * seq, 2, "abcd")) for seq in (1, 2)]
DATA = bytes(range(256)) * 4
ALGORITHM = digest.algorithm("blake2b")
TREE = {
    "model": {
        "w": {"$": "tensor", "name": "w"},
        "box": {"$": "tensor", "name": "box"},
        "tied": {"$": "tensor", "name": "w"},
        "q": {"$": "subclass", "class": "a.B", "name": "q", "parts": {"x": {"$": "tensor", "name": "w"}}},
    },
    "objects": {"n": {"$": "dict", "v": [[1, {"$": "tuple", "v": [2, 0.5]}], [{"$": "tuple", "v": [1]}, None]]}},
}
TABLE = [
    ["w", "F32", [2, 3], [], [], 0, 0],
    ["box", "BF16", [2, 2], [0, 0], [2, 4], 0, 32],
    ["box", "BF16", [2, 2], [0, 2], [2, 4], 0, 48],
]
PATTERNS = {
    "patterns": [[["box"], [0]]],
    "shards": [[0, [8, [["BF16", [2, 4], [0, 0], [4, 4]]], [[0, "w", "F32", [2, 3]]]]]],
}
BODY: Dict[str, Any] = {
    "extra": {"format": layout.EXTRA_FORMAT_OF_STAGES, "shared": TREE, "ranks": [{}, {}], "like": [{}, {}]},
    "table": TABLE,
    "patterns": None,
    "manifest": {"chunk": 256, "tensors": 2},
}


def a_root(said: Any) -> MemoryStore:
    """Two checkpoints, the newer one as an input says: whole by every digest. Raises ValueError for what is no input,
    CheckpointError for what no index of ours says."""
    if not isinstance(said, dict):
        raise ValueError("no checkpoint")
    store = MemoryStore("memory")
    for attempt, content in zip(ATTEMPTS, (BODY, said)):
        _put(store, attempt, content)
    return store


def _put(store: MemoryStore, attempt: str, content: Dict[str, Any]) -> None:
    chunk = 256
    leaves = digest.leaves_of(ALGORITHM, memoryview(DATA), chunk=chunk)
    size = len(DATA) + len(leaves)
    extra, places = json.dumps(content.get("extra")).encode(), _index(content)
    name = layout.parse_checkpoint_id(attempt)
    assert name is not None
    records = {
        "extra": FileRecord(layout.EXTRA_FILE, len(extra), digest.small_object_digest(extra)).to_json(),
        "index": FileRecord(layout.INDEX_FILE, len(places), digest.small_object_digest(places)).to_json(),
        "shards": [FileRecord(layout.shard_file(0), size, digest.root_digest(ALGORITHM, leaves, size), 0).to_json()],
    }
    facts = {"run": "x", "run_id": "0" * 32, "plan": "p", "digest": "blake2b", "time": "2026-11-20T23:58:03Z"}
    counts = {"epoch": 2, "seq": name.seq, "step": name.step, "world": 1, "total_bytes": size, "tensors": 2}
    changed = content.get("manifest")
    body = {"format": layout.FORMAT, **records, **facts, **counts, "chunk": chunk}
    body.update(changed if isinstance(changed, dict) else {})
    store._objects[f"{attempt}/{layout.MANIFEST_FILE}"] = manifest.seal_json(body)
    store._objects[f"{attempt}/{layout.EXTRA_FILE}"] = extra
    store._objects[f"{attempt}/{layout.INDEX_FILE}"] = places
    store._objects[f"{attempt}/{layout.shard_file(0)}"] = DATA + leaves


def _index(content: Dict[str, Any]) -> bytes:
    """Either version, as the input says; bytes of their own in base64."""
    patterns = content.get("patterns")
    if isinstance(patterns, str):
        return base64.b64decode(patterns)
    if patterns is not None:
        body = compact_index.MAGIC + zlib.compress(json.dumps(patterns).encode(), 1)
        return body + hashlib.blake2b(body, digest_size=16).digest()
    pieces: List[index.Piece] = []
    with contextlib.suppress(TypeError, ValueError):
        for name, dtype, shape, offsets, full, shard, begin in content.get("table") or ():
            pieces.append(index.Piece(TensorSpec(name, dtype, tuple(shape), tuple(offsets), tuple(full)), shard, begin))
    return index.encode(index.Index(tuple(pieces)))


def read_tensors(data: bytes) -> None:
    """By all three ways; the first that refuses ends it, and the others are tried before."""
    try:
        store = a_root(json.loads(data))
    except (ValueError, TypeError, AttributeError, OverflowError, KeyError, RecursionError) as err:
        raise CheckpointError(f"no input: {err}") from None
    refused: List[Exception] = []
    for read in (_compare, _match, _get):
        try:
            read(store)
        except (CheckpointError, UsageError) as err:
            refused.append(err)
    if refused:
        raise refused[0]


def _compare(store: MemoryStore) -> None:
    made = diff(CheckpointAt(store, ATTEMPTS[0]), CheckpointAt(store, ATTEMPTS[1]))
    json.dumps(command._to_json(made))
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        command._print_comparison(made, 50)


def _match(store: MemoryStore) -> None:
    live = {"w": torch.zeros(2, 3), "box": torch.zeros(2, 4, dtype=torch.bfloat16), "more": torch.zeros(1)}
    found = weight_sources.read_saved_tensors_or_problem(store, ATTEMPTS[1], "model")
    if isinstance(found, str):
        raise CheckpointError(found)
    made = weight_sources.match_tensors_by_name(live, found, None, None)
    str(made.problem)
    [weight_sources.is_of_other_dtype(live[here], found[there]) for here, there in made.pairs]


def _get(store: MemoryStore) -> None:
    path = os.path.join(folder("got"), "w.safetensors")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    tensor_export.export_tensor(store, "model.tied", path, ATTEMPTS[1])


def _drawn(rng: Random) -> bytes:
    body = {**BODY, "patterns": PATTERNS} if rng.random() < 0.5 else BODY
    return a_json(rng, [body])


SEEDS = (json.dumps(BODY).encode(), json.dumps({**BODY, "patterns": PATTERNS, "table": None}).encode())
PARSERS = [
    Parser("checkpoint: read by tensors", read_tensors, (CheckpointError, StorageUnreadable, UsageError), _drawn, SEEDS)
]
