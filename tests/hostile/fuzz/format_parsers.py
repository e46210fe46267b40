"""Training data and checkpoints of other programs: what is read of them, and how much room that takes."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import tempfile
import warnings
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Callable, List, Tuple

import pyarrow
import pyarrow.parquet
import torch
import torch.distributed.checkpoint
import zstandard

from hyperpod_kit.checkpoint.convert.files import safetensors_files, torch_files
from hyperpod_kit.checkpoint.convert.files.byte_sources import ImportedFiles
from hyperpod_kit.checkpoint.convert.formats import dcp, deepspeed
from hyperpod_kit.data.formats import table
from hyperpod_kit.data.reading.local_file import LocalFile
from hyperpod_kit.data.reading.source_files import SourceFiles
from hyperpod_kit.errors import CheckpointError, DataError, UsageError
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import some_bytes
from tests.hostile.fuzz.places import file_of, folder

FIRST = 20
"""Samples that are read of a file."""
MEMORY = 64 << 20
DCP_METADATA_SIZE = 0
"""Bytes to which `.metadata` is made longer by a hole."""


def read_samples(kind: str, path: str) -> int:
    """As an index and a loader do, the first samples and the last. Raises ValueError, DataError, OSError."""
    file = LocalFile(path)
    try:
        scan = table.import_format_module(kind).scan(file, lambda count: None)
        facts = SimpleNamespace(path=path, size=file.size, mtime_ns=file.mtime_ns, points={})
    finally:
        file.close()
    if len(scan.points):
        facts.points = {"raw": scan.points[:, 0], "plain": scan.points[:, 1]}
    files = files_of(os.getpid())
    files.close_and_forget_mount(path)
    try:
        reader = table.import_format_module(kind).reader(files, MEMORY)
        chosen = [*range(min(FIRST, len(scan.starts))), *([len(scan.starts) - 1] if len(scan.starts) else [])]
        for number in chosen:
            reader.record(facts, int(scan.starts[number]), int(scan.lengths[number]))
    finally:
        files.close_and_forget_mount(path)
    return len(scan.starts)


@functools.lru_cache(maxsize=1)
def files_of(pid: int) -> SourceFiles:
    """One for a process: it has a thread of its own."""
    return SourceFiles(MEMORY)


ENDINGS = {"lines": "jsonl", "gzip": "jsonl.gz", "zstd": "jsonl.zst", "parquet": "parquet", "tar": "tar"}


def a_format(kind: str, seeds: List[bytes], words: List[bytes]) -> Parser:
    def read(data: bytes) -> int:
        return read_samples(kind, file_of(data, f"data.{ENDINGS[kind]}"))

    def drawn(rng: Random) -> bytes:
        return some_bytes(rng, rng.choice(seeds), seeds, words)

    return Parser(f"data: {kind}", read, (ValueError, DataError), drawn, tuple(seeds))


LINES = b"".join(json.dumps({"text": "word " * n}).encode() + b"\n" for n in range(20))


def a_parquet(rows: int, **how: Any) -> bytes:
    out = io.BytesIO()
    columns = {"text": ["one", "two"] * rows, "number": list(range(2 * rows)), "list": [["a"], []] * rows}
    pyarrow.parquet.write_table(pyarrow.table(columns), out, **how)
    return out.getvalue()


def a_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, data in (("a.txt", b"one"), ("a.json", b"{}"), ("b" * 200 + ".txt", b"two")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return out.getvalue()


def a_weights() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def a_torch_file(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def a_dcp() -> Tuple[bytes, bytes]:
    """`.metadata` and the one file."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.checkpoint.save({"w": torch.zeros(4), "n": 3}, checkpoint_id=place, no_dist=True)
        return Path(place, ".metadata").read_bytes(), Path(place, "__0_0.distcp").read_bytes()


def with_files(work: Callable[[ImportedFiles], object]) -> None:
    files = ImportedFiles()
    try:
        work(files)
    finally:
        files.close()


def read_weights(data: bytes) -> None:
    path = Path(file_of(data, "w.safetensors"))
    with_files(lambda files: safetensors_files.inspect_file(files, path))


def read_weights_folder(data: bytes) -> None:
    place = Path(folder("weights"))
    for name in (safetensors_files.INDEX, "config.json"):
        (place / name).write_bytes(data)
    (place / "model-1.safetensors").write_bytes(a_weights())
    with_files(lambda files: safetensors_files.inspect_folder(files, place))


def read_tensor(data: bytes) -> None:
    path = Path(file_of(data, "t.pt"))
    with_files(lambda files: torch_files.locate_tensor(files, path, 0, len(data)))


def read_value(data: bytes) -> None:
    path = Path(file_of(data, "v.pt"))
    with_files(lambda files: torch_files.load_value(files, path, 0, len(data)))


def read_torch(data: bytes) -> None:
    torch_files.load_file(Path(file_of(data, "t.pt")))


def read_deepspeed(data: bytes) -> None:
    deepspeed._load_torch_file(Path(file_of(data, "mp_rank_00_model_states.pt")))


def read_dcp(data: bytes, metadata: bool) -> None:
    place = Path(folder("dcp"))
    whole = a_dcp_once()
    (place / ".metadata").write_bytes(data if metadata else whole[0])
    (place / "__0_0.distcp").write_bytes(whole[1] if metadata else data)
    if DCP_METADATA_SIZE:
        os.truncate(place / ".metadata", DCP_METADATA_SIZE)

    def look(files: ImportedFiles) -> None:
        found = dcp.inspect_folder(files, place)
        for name in found.values:
            dcp.load_value(files, found, name)

    with_files(look)


_MADE: List[Tuple[bytes, bytes]] = []


def a_dcp_once() -> Tuple[bytes, bytes]:
    if not _MADE:
        _MADE.append(a_dcp())
    return _MADE[0]


def an_importer(
    name: str, call: Callable[[bytes], object], seeds: List[bytes], *declared: type, words: Tuple[bytes, ...] = ()
) -> Parser:
    def drawn(rng: Random) -> bytes:
        return some_bytes(rng, rng.choice(seeds), seeds, list(words))

    return Parser(f"import: {name}", call, (CheckpointError, UsageError, *declared), drawn, tuple(seeds))


_ZIP = (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"X\xff\xff\xff\xff")
_INDEX = json.dumps({"weight_map": {"w": "model-1.safetensors"}}).encode()

PARSERS = [
    a_format("lines", [LINES, b"\n\r\n" + LINES], [b"\n", b"\r\n"]),
    a_format("gzip", [gzip.compress(LINES), gzip.compress(LINES[:99]) + gzip.compress(LINES[99:])], [b"\x1f\x8b\x08"]),
    a_format(
        "zstd",
        [zstandard.compress(LINES), zstandard.compress(LINES[:99]) + zstandard.compress(LINES[99:])],
        [b"\x28\xb5\x2f\xfd"],
    ),
    a_format("parquet", [a_parquet(10), a_parquet(50, compression="zstd", row_group_size=20)], [b"PAR1"]),
    a_format("tar", [a_tar()], [b"ustar", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"x", b"L", b"S"]),
    an_importer("safetensors", read_weights, [a_weights()]),
    an_importer("safetensors index", read_weights_folder, [_INDEX]),
    an_importer("torch tensor", read_tensor, [a_torch_file(torch.zeros(4))], words=_ZIP),
    an_importer("torch value", read_value, [a_torch_file({"a": [1, 2]})], pickle.UnpicklingError, words=_ZIP),
    an_importer("torch file", read_torch, [a_torch_file({"w": torch.zeros(4), "n": [1, 2]})], words=_ZIP),
    an_importer("DeepSpeed file", read_deepspeed, [a_torch_file({"module": {"w": torch.zeros(4)}})], words=_ZIP),
    an_importer("DCP .metadata", lambda data: read_dcp(data, True), [a_dcp_once()[0]], words=_ZIP),
    an_importer("DCP file", lambda data: read_dcp(data, False), [a_dcp_once()[1]], words=_ZIP),
]
