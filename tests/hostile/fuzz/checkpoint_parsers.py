"""What is read from a checkpoint root, from shared memory and from a node's disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import zlib
from random import Random
from typing import Any, Callable

from hyperpod_kit.checkpoint.agent.leader import failure_rows
from hyperpod_kit.checkpoint.agent.persist import local
from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report
from hyperpod_kit.checkpoint.agent.shm import control_page, failure_note, job_note, note_page, shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.checkpoint.repository.format import (
    compact_index,
    digest,
    index,
    layout,
    manifest,
    non_tensor_state,
    rows,
    shard,
    shard_table,
)
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog, identity, lease, pins, rollbacks, tombstone
from hyperpod_kit.checkpoint.repository.store.base import Capabilities
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import parse
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import a_json, a_text, some_bytes
from tests.hostile.fuzz.places import file_of, folder

ATTEMPT = str(layout.CheckpointId(5, 50, 2, "abcd"))
SHARDS = tuple(FileRecord(layout.shard_file(rank), 4096, "blake2b:" + "0" * 32, rank) for rank in range(2))
MANIFEST = Manifest(
    run="x",
    run_id="0" * 32,
    epoch=2,
    seq=5,
    step=50,
    world=2,
    plan="p",
    digest="blake2b",
    chunk=digest.CHUNK,
    total_bytes=8192,
    tensors=4,
    time="2026-11-20T23:58:03Z",
    extra=FileRecord("extra.json", 2, "blake2b:ab"),
    shards=SHARDS,
    index=FileRecord("index.bin", 100, "blake2b:cd"),
    metrics={"loss": 0.5, "bad": float("nan")},
    parent={"seq": 4, "step": 40},
    job={"slurm_job_id": "7", "mesh": [2, 1]},
    versions={"torch": "2.5"},
)
SPECS = [
    shard.TensorSpec("layer.weight", "F32", (16, 8)),
    shard.TensorSpec("box", "BF16", (4, 8), (4, 0), (8, 8)),
    shard.TensorSpec("fnuz", "F8_E4M3FNUZ", (3,)),
    shard.TensorSpec("scalar", "I64", ()),
]
LAID = shard.lay_out(SPECS, rank=0, world=2, run_id="0" * 32, plan="p", algorithm="blake2b")
PAGE = control_page.Page(
    state=SlotState.SEALED,
    origin=control_page.CaptureOrigin(
        rank=0,
        world=2,
        incarnation="abcd",
        run="x",
        run_id="0" * 32,
        root="/fsx/x",
        job={"slurm_job_id": "7"},
        owner=(12, 34),
    ),
    epoch=2,
    seq=5,
    step=50,
    shard=control_page.ShardFacts(
        digest="blake2b",
        chunk=1 << 20,
        size=8192,
        layout="l",
        plan="p",
        tensors=4,
        plan_tensors=4,
        extra_size=2,
        extra_root="blake2b:ab",
        root="blake2b:cd",
    ),
)


_NAME = layout.parse_checkpoint_id(ATTEMPT)
assert _NAME is not None
REWIND = {
    "format": "hpk-rewind/1",
    "attempt": ATTEMPT,
    "order": [_NAME.epoch, _NAME.seq],
    "epoch": 7,
    "by": "a",
    "time": "b",
}


def sealed(name: str, body: Any, read: Callable[[bytes], object]) -> Parser:
    """A file that proves itself: its digest is right in nine inputs of ten, so that what follows is reached."""

    def make(rng: Random) -> bytes:
        if rng.random() < 0.1:
            return some_bytes(rng, seed, [seed], [b'"self":"', b"{}"])
        try:
            made = json.loads(a_json(rng, [body]))
            return manifest.seal_json(made) if isinstance(made, dict) else json.dumps(made).encode()
        except (ValueError, RecursionError):  # NaN, or what no encoder makes: as it is then
            return a_json(rng, [body])

    seed = manifest.seal_json(body)
    return Parser(name, read, (CheckpointError,), make, (seed,))


def use(*values: object) -> None:
    """What a reader computes of a field must be computable."""


class DearStore(MemoryStore):
    """As S3 is: a look-up is dear, so LATEST counts."""

    @property
    def capabilities(self) -> Capabilities:
        return super().capabilities._replace(local=False)


def a_store(name: str = "", data: bytes = b"") -> MemoryStore:
    store = MemoryStore("memory")
    if name:
        store._objects[name] = data
    return store


def read_manifest(data: bytes) -> None:
    found = verify.parse_manifest(data, ATTEMPT)
    manifest.parse_time(found.time)
    found.encode()
    for name, value in sorted(found.metrics.items()):
        use(f"{name} {float(value):g}")
    identity.RunIdentity(found.run, found.run_id)


def read_run(data: bytes) -> None:
    identity.read_run_file(a_store(layout.RUN_FILE, data))


def read_rewind(data: bytes) -> None:
    store = a_store(f"{layout.ROLLBACKS}/000001.json", data)
    store._objects[layout.epoch_file(9)] = b"{}"
    found = rollbacks.read_active_records(store)
    name = layout.parse_checkpoint_id(ATTEMPT)
    assert name is not None
    use(rollbacks.exclusion_reason(found, name))


def read_latest_and_starts(data: bytes) -> None:
    store = DearStore("memory")
    store._objects.update(
        {
            layout.LATEST_FILE: data,
            layout.epoch_file(2): data,
            layout.epoch_file(3): data,
            f"{ATTEMPT}/{layout.MANIFEST_FILE}": b"x",
            layout.tombstone_file(ATTEMPT): data,
            f"{layout.PINS}/{ATTEMPT}.json": data,
        }
    )
    list(catalog.iter_checkpoints_newest_first(store))
    catalog.highest_epoch_and_seq(store)
    tombstone.read_damage_reason(store, ATTEMPT)
    pins.pinned_checkpoints(store)
    identity._identity_in_epoch_file(store, layout.epoch_file(2))


def read_names(data: bytes) -> None:
    """A listing of odd names: attempts, leases, pins, tombstones, starts."""
    store = a_store()
    names = [
        name
        for name in data.decode("utf-8", "replace").split("\n")
        if name and not name.startswith("/") and ".." not in name.split("/") and "" not in name.split("/")
    ]
    store._objects.update({name: b"" for name in names})
    list(catalog.iter_checkpoints_newest_first(store))
    catalog.highest_epoch_and_seq(store)
    lease.leased_checkpoints(store)
    pins.pinned_checkpoints(store)
    failure_rows.read_newest(store)
    identity.collect_identity_evidence(store)


NAMES = "\n".join(
    [
        f"{ATTEMPT}/{layout.MANIFEST_FILE}",
        f"{ATTEMPT}/{layout.shard_file(0)}",
        f"{ATTEMPT}.BAD",
        "epoch-000003.json",
        f"leases/{ATTEMPT}.1700000000-00000000.json",
        f"pins/{ATTEMPT}.json",
        "rewinds/000001.json",
        ".hpk/saves-e000003-000008.json",
        "LATEST",
    ]
).encode()


def a_name_list(rng: Random) -> bytes:
    if rng.random() < 0.5:
        return some_bytes(rng, NAMES, [NAMES], [b"seq-", b".step-", b".e", b"-abcd", b".BAD", b"/", b"\n", b"9" * 30])
    return a_text(rng, NAMES.decode()).encode("utf-8", "replace")


def an_index() -> Parser:
    seed = index.encode(index.build({0: LAID.tensors, 1: LAID.tensors}))

    def make(rng: Random) -> bytes:
        body = some_bytes(rng, seed[:-16], [seed], [struct.pack("<Q", 2**63), struct.pack("<I", 2**32 - 1)])
        return body + hashlib.blake2b(body, digest_size=16).digest() if rng.random() < 0.9 else body

    def read(data: bytes) -> None:
        for pieces in index.decode(data).tensors().values():
            for piece in pieces:
                use(piece.spec.nbytes, piece.spec.full_shape, piece.spec.is_at_origin)

    return Parser("checkpoint: index.bin", read, (CheckpointError,), make, (seed,))


def a_compact_index() -> Parser:
    tables = [shard_table.build_table(LAID.tensors)] * 2
    texts = [
        (one.pattern.to_json_bytes().decode(), shard_table.encode_table_without_pattern(one).decode())
        for one in tables
        if one is not None
    ]
    seed = compact_index.encode(texts)
    plain = zlib.decompress(seed[8:-16])

    def make(rng: Random) -> bytes:
        text = some_bytes(rng, plain, [plain], [b"99999999999999999999", b"-1", b"[]", b"null", b"[", b'"'])
        packed = zlib.compress(text) if rng.random() < 0.9 else some_bytes(rng, seed[8:-16], [seed], [b"x"])
        body = compact_index.MAGIC + packed
        return body + hashlib.blake2b(body, digest_size=16).digest()

    def read(data: bytes) -> None:
        found = rows.decode_index_file(data)
        for name in found:
            for piece in found[name]:
                use(piece.spec.nbytes, piece.spec.full_shape, piece.spec.is_at_origin, piece.begin)
            found.find_overlap_candidates(name, (0, 0), (1, 1))

    return Parser("checkpoint: index.bin, version 2", read, (CheckpointError,), make, (seed,))


def a_shard() -> Parser:
    head = LAID.header(2, 5, 50)
    seed = head + bytes(LAID.size - len(head))
    header = json.loads(head[8:])

    def make(rng: Random) -> bytes:
        draw = rng.random()
        if draw < 0.2:
            return some_bytes(rng, seed, [seed], [b'"data_offsets":', b'"shape":'])
        text = a_json(rng, [header])
        if draw < 0.9:
            text += b" " * (-(8 + len(text)) % shard.ALIGN)
        return struct.pack("<Q", len(text)) + text + bytes(LAID.size - len(head))

    def read(data: bytes) -> None:
        found = shard.parse(memoryview(data))
        for placed in found.tensors:
            use(placed.spec.nbytes, placed.spec.full_shape, placed.spec.is_at_origin, placed.spec.as_safetensors())
        shard.Parser().parse_or_reuse_last(memoryview(data))

    return Parser("checkpoint: shard header", read, (CheckpointError,), make, (seed,))


def a_page() -> Parser:
    room = bytearray(control_page.PAGE)
    control_page.write(memoryview(room), 1, PAGE)
    body = json.loads(json.dumps(PAGE.to_json()))
    seed = bytes(room)

    def half(rng: Random) -> bytes:
        text = a_json(rng, [body])
        made = struct.pack("<8sQI", b"HPKSLOT1", rng.choice((1, 2, 3, 2**64 - 1)), len(text)) + text
        made += digest.algorithm("blake2b").leaf(made)
        return made[: control_page.PAGE // 2].ljust(control_page.PAGE // 2, b"\0")

    def make(rng: Random) -> bytes:
        if rng.random() < 0.2:
            return some_bytes(rng, seed, [seed], []).ljust(control_page.PAGE, b"\0")[: control_page.PAGE]
        return half(rng) + half(rng)

    def read(data: bytes) -> None:
        found = control_page.read(memoryview(data))
        if found is None:
            raise CheckpointError("no page")
        page = found[1]
        name = layout.CheckpointId(page.seq, page.step, page.epoch, page.origin.incarnation)
        use(
            page.origin.trainer,
            page.key,
            sorted([page.key, PAGE.key]),
            str(name),
            shm_slots.run_hash(page.origin.run_id),
        )
        use(
            page.shard.size + page.shard.extra_size + page.shard.chunk + page.shard.tensors + page.shard.plan_tensors,
            page.origin.rank < page.origin.world,
        )
        use(
            {page.state, page.origin.root, page.shard.digest, page.shard.root, page.shard.layout, page.shard.plan},
            dict(page.origin.job),
        )
        use(layout.shard_file(page.origin.rank))

    return Parser("shared memory: control page", read, (CheckpointError,), make, (seed,))


def a_note(name: str, note: Any, of: Callable[[Any], object]) -> Parser:
    seed = json.dumps(note._asdict()).encode().ljust(note_page.PAGE)

    def read(data: bytes) -> None:
        with contextlib.suppress(ValueError):
            of(parse.parse_json(data))

    return Parser(name, read, (), lambda rng: a_json(rng, [note._asdict()])[:5000], (seed,))


SAVES = failure_note.Note("x", "/fsx/x", "7", 50, 1.7e9, 2, "no room")
FARES = job_note.JobNote("7_2", 3, 1.7e9, 4, 0.5, {"crash": 2})


def a_lost_row() -> Parser:
    row = failure_rows.Row(3, 8, 2, "no room", 1.7e9)._asdict()

    def read(data: bytes) -> None:
        failure_rows.read_newest(a_store(".hpk/saves-e000003-000008.json", data))

    return Parser("checkpoint: lost saves", read, (), lambda rng: a_json(rng, [row]), (json.dumps(row).encode(),))


def read_report(data: bytes) -> None:
    place = folder("local")
    file = file_of(data, f"local/hpk-{'0' * 12}/{ATTEMPT}/{layout.report_file(0)}")
    for part in local.list_parts(place, "0" * 12, 0):
        use(part.report.page.key, part.report.page.origin.world, part.report.record.root, part.report.record.size)
        for placed in part.report.pieces:
            use(placed.spec.nbytes, placed.end - placed.begin, placed.spec.full_shape)
    os.unlink(file)


TREE = {
    "model": {
        "w": {"$": "tensor", "name": "model.w"},
        "q": {"$": "subclass", "class": "a.B", "name": "q", "parts": {}},
    },
    "extra": {"$": "dict", "v": [[1, {"$": "tuple", "v": [2, {"$": "tensor", "name": "extra.1"}]}]]},
}
EXTRA = {
    "format": layout.EXTRA_FORMAT_OF_STAGES,
    "shared": TREE,
    "ranks": [{"save": {}}, {}],
    "like": [{}, {"save": 0}],
}


def read_trees(data: bytes) -> None:
    for rank in range(3):
        list(non_tensor_state.tensor_paths_and_names(extra_state.parse_rank_tree_outside_shard(data, rank)))
    list(non_tensor_state.tensor_and_subclass_records(extra_state.merge_stage_trees(data)))
    extra_state.split_shared_and_rank_parts(data, 3)


REPORT = Report(PAGE, SHARDS[0], "{}", LAID.tensors).to_json()

PARSERS = [
    sealed("checkpoint: MANIFEST.json", manifest.parse_sealed_json(MANIFEST.encode(), "seed"), read_manifest),
    sealed(
        "checkpoint: RUN.json", {"format": layout.RUN_FORMAT, "run": "x", "id": "0" * 32, "created": "2026"}, read_run
    ),
    sealed(
        "checkpoint: LATEST, starts, tombstone",
        {"format": "hpk-latest/1", "attempt": ATTEMPT, "first_seq": 3, "id": "0" * 32, "run": "x", "reason": "torn"},
        read_latest_and_starts,
    ),
    sealed("checkpoint: step back", REWIND, read_rewind),
    Parser(
        "checkpoint: trees (extra.json)",
        read_trees,
        (CheckpointError,),
        lambda rng: a_json(rng, [EXTRA]),
        (json.dumps(EXTRA).encode(),),
    ),
    Parser("checkpoint: names in a root", read_names, (), a_name_list, (NAMES,)),
    an_index(),
    a_compact_index(),
    a_shard(),
    a_page(),
    a_note("shared memory: note of saves", SAVES, failure_note._parse_note),
    a_note("shared memory: note of a job", FARES, job_note._parse_job_note),
    a_lost_row(),
    sealed("node's disk: report", REPORT, read_report),
]
