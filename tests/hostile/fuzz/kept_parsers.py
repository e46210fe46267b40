"""What programs of ours keep for themselves or for each other, where others may have had their hands on it: the parts
of an index, chunks of objects on a local disk, the record of the guard of Slurm, reports that ranks hand in."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from random import Random
from typing import Any, Dict, List, Optional

import numpy as np

from hyperpod_kit.checkpoint.agent.flush import flush_captures
from hyperpod_kit.checkpoint.agent.reports import assemble
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Page, ShardFacts, SlotState
from hyperpod_kit.checkpoint.repository.format import digest, layout, manifest, shard
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.data.formats.table import Scan
from hyperpod_kit.data.index.build import Parts
from hyperpod_kit.data.reading.chunks import DiskCache
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.node.slurm.guard import commands, mend
from hyperpod_kit.slurm import findings
from hyperpod_kit.slurm.findings import GuardRecord, SlurmFinding
from tests.hostile.fuzz.checkpoint_parsers import ATTEMPT
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import ODD_NUMBERS, a_json, a_text, some_bytes
from tests.hostile.fuzz.places import file_of, folder
from tests.hostile.fuzz.words import js, of_json

NUMBERS = [number for number in ODD_NUMBERS if isinstance(number, int) and 0 <= number < 2**64]
KEYS = ("lines 60 1700000000000000000 /fsx/corpus/a.jsonl", "gzip 9 1 /fsx/corpus/b.jsonl.gz")
SCAN = Scan(
    np.arange(0, 60, 10, dtype=np.uint64),
    np.full(6, 10, np.uint32),
    "blake2b:" + "0" * 32,
    1,
    np.array([[0, 0], [30, 30]], np.uint64),
)


BODY = struct.pack("<3Q", 6, 2, 1) + SCAN.starts.tobytes() + SCAN.lengths.tobytes() + SCAN.points.tobytes()
BODY += SCAN.digest.encode()


def _part(key: bytes, body: bytes, key_length: Optional[int] = None, length: Optional[int] = None) -> bytes:
    """A record with right checksums."""
    said = (len(key) if key_length is None else key_length, len(body) + 4 if length is None else length)
    head = b"hpkpart1" + struct.pack("<IQI", *said, zlib.crc32(key))
    return head + key + body + struct.pack("<I", zlib.crc32(body))


PARTS = b"".join(_part(key.encode(), BODY) for key in KEYS)


def read_parts(data: bytes) -> None:
    """Every scan that is there, and then one that is kept behind them."""
    file_of(data, "parts/scans-x")
    parts = Parts(folder("parts"), "x")
    try:
        for key in list(parts._locations):
            found = parts.read_scan_if_intact(key)
            if found is not None:
                assert len(found.starts) == len(found.lengths) and found.points.shape[1] == 2
                found.digest.encode()
        parts.append_scan("new", SCAN)
    finally:
        parts.flush_and_close()
    if len(data) % 16:  # to open it once more is dear
        return
    parts = Parts(folder("parts"), "x")
    try:
        again = parts.read_scan_if_intact("new")
    finally:
        parts.flush_and_close()
    assert again is not None and again.digest == SCAN.digest


def some_parts(rng: Random) -> bytes:
    """Its checksums are right in most."""
    if rng.random() < 0.3:
        return some_bytes(rng, PARTS, [PARTS], [b"hpkpart1", struct.pack("<I", 2**32 - 1), struct.pack("<Q", 2**63)])
    records = []
    for key in KEYS[: rng.randint(1, 2)]:
        name = a_text(rng, key).encode("utf-8", "replace") if rng.random() < 0.3 else key.encode()
        body = some_bytes(rng, BODY, [BODY], []) if rng.random() < 0.5 else BODY
        if rng.random() < 0.6:
            counts = [6, 2, 1]
            counts[rng.randrange(3)] = rng.choice(NUMBERS)
            body = struct.pack("<3Q", *counts) + body[24:]
        draw = rng.random()
        records.append(
            _part(
                name,
                body,
                rng.choice(NUMBERS) % 2**32 if draw < 0.1 else None,
                rng.choice(NUMBERS) if 0.1 < draw < 0.2 else None,
            )
        )
    return b"".join(records)


CHUNK_KEY = 's3://corpus/a.jsonl "0a" 0-64'
CHUNK = bytes(range(64))


KEPT = CHUNK + zlib.crc32(CHUNK, zlib.crc32(CHUNK_KEY.encode())).to_bytes(4, "little")


def read_chunk(data: bytes) -> None:
    """The chunk as it was kept, or nothing: never other bytes."""
    file_of(data, f"cache/{DiskCache('')._path(CHUNK_KEY)}")
    assert DiskCache(folder("cache")).get(CHUNK_KEY, len(CHUNK)) in (None, CHUNK)


NOW = 1.7e9
GUARD = GuardRecord(
    NOW,
    (SlurmFinding("slurmctld-down", "it is down", "start it"), SlurmFinding("put-back", "our lines", fault=False)),
    {mend.BUILT: {"count": 5, "at": NOW, "words": "built it", "error": ""}},
).to_dict()


def read_guard(data: bytes) -> None:
    """As all who report do, and as the guard goes on from it."""
    record = findings.read_guard_record(file_of(data, "slurm.json"))
    for now in (NOW, NOW + 1e6):
        for finding in findings.findings_or_guard_silent(record, now):
            finding.message.split()
    mended = commands.mended_from_record(record)
    mend.findings_about_mending(mended, NOW)
    for tries in mended.notes.values():
        tries.is_next_try_due(NOW)
        tries.after_nothing_to_do(NOW).after_try(NOW, "x")
    commands.render_metrics(record or GuardRecord(NOW), 1.0)
    if record is not None:
        commands.describe_finding_changes((), record.findings)
    json.dumps(mended.to_dict())


WORLD = 2
SPECS = [
    [shard.TensorSpec("layer.weight", "F32", (16, 8)), shard.TensorSpec("box", "BF16", (4, 8), (0, 0), (8, 8))],
    [shard.TensorSpec("box", "BF16", (4, 8), (4, 0), (8, 8)), shard.TensorSpec("scalar", "I64", ())],
]


def _of_rank(rank: int) -> Report:
    tree: Dict[str, Any] = {
        "save": {"mesh": [2], "metrics": {"loss": 0.5}},
        "model": {"names": ["n"] * 400},
        "rng": [rank],
    }
    tree["held"] = [["layer.weight", "F32"], ["box", "BF16"], ["scalar", "I64"]]
    extra = json.dumps(tree, separators=(",", ":"))
    laid = shard.lay_out(SPECS[rank], rank=rank, world=WORLD, run_id="0" * 32, plan="p", algorithm="blake2b")
    root = "blake2b:" + "0" * 32
    facts = ShardFacts(
        digest="blake2b",
        chunk=digest.CHUNK,
        size=laid.size,
        layout=laid.fingerprint,
        plan="p",
        tensors=(2, 1)[rank],
        plan_tensors=3,
        extra_size=len(extra),
        extra_root=digest.small_object_digest(extra.encode()),
        root=root,
    )
    origin = CaptureOrigin(rank, WORLD, "abcd", "x", "0" * 32, "/fsx/x", {"slurm_job_id": "7"}, (12, 34))
    page = Page(SlotState.SEALED, origin, 2, 5, 50, facts)
    return Report(page, manifest.FileRecord(layout.shard_file(rank), laid.size, root, rank), extra, laid.tensors)


def _handed_in() -> Dict[str, bytes]:
    store = MemoryStore("memory")
    for rank in range(WORLD):
        flush_captures.write_report(store, ATTEMPT, rank, _of_rank(rank))
    return {name: bytes(data) for name, data in store._objects.items()}


HANDED_IN = _handed_in()
REPORTS = {name: manifest.parse_sealed_json(data, name) for name, data in HANDED_IN.items() if "/report-" in name}


def read_handed_in(data: bytes) -> None:
    """`data`: the name of what is replaced, a zero, and its bytes. As whoever comes last commits it."""
    name, _, content = data.partition(b"\0")
    store = MemoryStore("memory")
    store._objects.update(HANDED_IN)
    store._objects[name.decode("latin-1") if name.decode("latin-1") in HANDED_IN else min(REPORTS)] = content
    reports = flush_captures.read_reports(store, ATTEMPT, WORLD)
    assert reports is not None
    made = assemble.build_commit_files(reports, {"writer": "flush"})
    manifest.decode(made.manifest.encode())


def some_handed_in(rng: Random) -> bytes:
    name = rng.choice([*REPORTS, *HANDED_IN])
    if name not in REPORTS or rng.random() < 0.1:
        return name.encode() + b"\0" + some_bytes(rng, HANDED_IN[name], list(HANDED_IN.values()), [b'"self":"', b"{}"])
    made: Any = a_json(rng, [REPORTS[name]])
    with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):  # what no encoder makes
        made = manifest.seal_json(json.loads(made))
    return name.encode() + b"\0" + made


def _named(files: Dict[str, bytes]) -> List[bytes]:
    return [name.encode() + b"\0" + data for name, data in files.items()]


PARSERS = [
    Parser("data: parts of an index", read_parts, (OSError,), some_parts, (PARTS,)),
    Parser(
        "data: chunk on a local disk",
        read_chunk,
        (),
        lambda rng: some_bytes(rng, KEPT, [KEPT], [struct.pack("<I", zlib.crc32(CHUNK))]),
        (KEPT,),
    ),
    Parser("node: record of the guard of Slurm", read_guard, (), of_json(GUARD), (js(GUARD),)),
    Parser(
        "checkpoint: reports that ranks hand in",
        read_handed_in,
        (CheckpointError, OSError),
        some_handed_in,
        tuple(_named(HANDED_IN)),
    ),
]
