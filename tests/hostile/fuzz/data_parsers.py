"""What programs of ours leave beside training data, and read again of whoever shares it: an index, a ledger of samples,
a list of merged files, an index of Megatron's."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import struct
import tarfile
from random import Random
from typing import Any, Callable, Dict, List

import numpy as np

from hyperpod_kit.data.bulk import merge
from hyperpod_kit.data.index import layout
from hyperpod_kit.data.index.layout import SampleIndex
from hyperpod_kit.data.loading import sample_log_check
from hyperpod_kit.data.tokens import megatron
from hyperpod_kit.errors import DataError
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import a_json, some_bytes
from tests.hostile.fuzz.places import file_of, folder

FILES, SAMPLES = 2, 6
HEADER = {
    "format": layout.FORMAT,
    "sources": ["/fsx/corpus"],
    "formats": ["jsonl"],
    "samples": SAMPLES,
    "bytes": 60,
    "skipped": 0,
    "digest": "blake2b",
    "data": "0" * 32,
}


def _array(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, values, allow_pickle=False)
    return out.getvalue()


def _arrays() -> Dict[str, bytes]:
    rows = np.zeros(FILES, layout.FILE)
    rows["path_at"], rows["path_length"], rows["first"], rows["samples"] = [0, 3], [3, 3], [0, 3], [3, 3]
    return {
        "files": _array(rows),
        "paths": _array(np.frombuffer(b"a.jb.j", np.uint8)),
        "starts": _array(np.arange(SAMPLES, dtype="<u8")),
        "lengths": _array(np.full(SAMPLES, 10, "<u4")),
        "points": _array(np.zeros(0, layout.POINT)),
    }


ARRAYS = _arrays()
SAID = json.dumps(HEADER).encode()
INDEX = b"\0".join([b"header", SAID])


def read_index(data: bytes) -> None:
    """`data`: the name of what is replaced, a zero, and its bytes."""
    name, _, content = data.partition(b"\0")
    array = name.decode("latin-1") if name.decode("latin-1") in ARRAYS else ""
    place = _whole_index(os.getpid())
    replaced, whole = (f"index/{array}.npy", ARRAYS[array]) if array else (f"index/{layout.HEADER}", SAID)
    file_of(content, replaced)
    try:
        _read_index(place)
    finally:
        file_of(whole, replaced)


@functools.lru_cache(maxsize=1)
def _whole_index(pid: int) -> str:
    for array, content in ARRAYS.items():
        file_of(content, f"index/{array}.npy")
    return os.path.dirname(file_of(SAID, f"index/{layout.HEADER}"))


def _read_index(place: str) -> None:
    index = SampleIndex.open(place)
    for number in range(index.files):
        index.file(number)
    numbers = np.arange(min(index.samples, 20), dtype=np.int64)
    files, starts, lengths = index.where(numbers)
    assert len(files) == len(starts) == len(lengths) == len(numbers)
    index.block_for()


def _an_index(rng: Random) -> bytes:
    name = rng.choice(["header", *ARRAYS])
    if name == "header":
        return b"header\0" + a_json(rng, [HEADER])
    words = [b"'descr': '<u8'", b"'shape': (99999999999,)", b"'shape': ()", b"True", struct.pack("<Q", 2**63), b"|O"]
    return name.encode() + b"\0" + some_bytes(rng, ARRAYS[name], list(ARRAYS.values()), words)


LEDGER_HEAD = {
    "ledger": "hpk-ledger/1",
    "launch": "7",
    "rank": 0,
    "ranks": 1,
    "data": "0" * 32,
    "samples": SAMPLES,
    "last": "drop",
    "segment": 0,
    "begin": 0,
    "begun_ns": 1_700_000_000_000_000_000,
}
LEDGER_STEP = {"p": 0, "n": 3, "f": 0, "i": [2, 0, 5], "b": [5]}
LEDGER = b"".join(
    json.dumps(line).encode() + b"\n" for line in (LEDGER_HEAD, LEDGER_STEP, {**LEDGER_STEP, "p": 3, "i": [1, 3, 4]})
)


def read_ledger(data: bytes) -> None:
    place = folder("ledger")
    file_of(data, "ledger/7.rank-00000.jsonl")
    found = sample_log_check.check_sample_log(place)
    json.dumps([found.is_exactly_once, found.samples, *(each.missing for each in found.epochs), *found.problems])


def _a_ledger(rng: Random) -> bytes:
    if rng.random() < 0.2:
        return some_bytes(rng, LEDGER, [LEDGER], [b'"samples":', b"99999999999999999999", b"[]", b"-1"])
    lines = [LEDGER_HEAD, LEDGER_STEP, {**LEDGER_STEP, "p": 3, "i": [1, 3, 4]}]
    number = rng.randrange(len(lines))
    texts = [json.dumps(line).encode() for line in lines]
    texts[number] = a_json(rng, [lines[number]]).replace(b"\n", b" ")
    return b"\n".join(texts) + b"\n"


def _a_tar(content: bytes = b"hello") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("a/b.txt")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


MERGED = {
    "format": "hpk-merged/1",
    "files": {"a/b.txt": ["000000.tar", 5, hashlib.blake2b(b"hello", digest_size=16).hexdigest()]},
}
TAR = _a_tar()


def read_merged(data: bytes) -> None:
    """`data`: `list` or `tar`, a zero, and the bytes of that."""
    name, _, content = data.partition(b"\0")
    file_of(content if name == b"list" else json.dumps(MERGED).encode(), f"merged/{merge.LIST_FILE}")
    file_of(content if name == b"tar" else TAR, "merged/000000.tar")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(os.path.join(folder("split"), "a"))
    merge.extract_merged_files(folder("merged"), folder("split"), progress=lambda done, total: None)


def _a_merged(rng: Random) -> bytes:
    if rng.random() < 0.6:
        return b"list\0" + a_json(rng, [MERGED])
    return b"tar\0" + some_bytes(rng, TAR, [TAR], [b"ustar\x0000", b"777777777777", b"\x80" + bytes(10) + b"\xff"])


TOKENS = np.arange(6, dtype="<u2").tobytes()


def _idx() -> bytes:
    lengths, pointers = np.array([2, 4], "<i4"), np.array([0, 4], "<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 2, 3)
    return head + lengths.tobytes() + pointers.tobytes() + np.arange(3, dtype="<i8").tobytes()


def read_megatron(data: bytes) -> None:
    prefix = file_of(data, "tokens.idx")[: -len(".idx")]
    file_of(TOKENS, "tokens.bin")
    found = megatron.MegatronTokens(prefix)
    found.block_for()
    assert len(found) == len(found.lengths)


def _a_parser(name: str, call: Callable[[bytes], None], make: Callable[[Random], bytes], seeds: List[bytes]) -> Parser:
    return Parser(name, call, (DataError, OSError), make, tuple(seeds))


PARSERS = [
    _a_parser("data: an index", read_index, _an_index, [INDEX]),
    _a_parser("data: a ledger of samples", read_ledger, _a_ledger, [LEDGER]),
    _a_parser("data: merged files", read_merged, _a_merged, [b"list\0" + json.dumps(MERGED).encode(), b"tar\0" + TAR]),
    _a_parser(
        "data: an index of Megatron's",
        read_megatron,
        lambda rng: some_bytes(rng, _idx(), [_idx()], [struct.pack("<Q", 2**63), struct.pack("<i", -1)]),
        [_idx()],
    ),
]
