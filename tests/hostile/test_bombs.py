"""Small files that ask for gigabytes, as training data and as checkpoints of others: each is refused with a declared
error or read in little room, in a process of its own whose peak is looked at."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import os
import struct
import tarfile
import traceback
import zlib
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

np = pytest.importorskip("numpy")
pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
pytest.importorskip("zstandard")
torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint.repository.format import (  # noqa: E402
    compact_index,
    layout,
    shard,
)
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord  # noqa: E402
from hyperpod_kit.checkpoint.repository.read import rank_extra_state, verify  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import leftovers  # noqa: E402
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore  # noqa: E402
from hyperpod_kit.errors import CheckpointError  # noqa: E402
from tests.hostile.fuzz import checkpoint_parsers, format_parsers, places, tensor_parsers, tool_parsers  # noqa: E402
from tests.hostile.fuzz.engine import Parser  # noqa: E402

MOST = 300
"""MB over the process before it reads."""


def repeated(byte: int, size: int) -> bytes:
    """A zstd frame of RLE blocks: four bytes for 128 KiB."""
    count = size // (128 << 10)
    block = (128 << 10) << 3 | 1 << 1
    blocks = [(block | (number == count - 1)).to_bytes(3, "little") + bytes([byte]) for number in range(count)]
    # Magic, a frame without a content size and with a window of 128 KiB.
    return b"\x28\xb5\x2f\xfd" + bytes([0, 7 << 3]) + b"".join(blocks)


def a_window(log: int) -> bytes:
    """A frame that says it looks back that far."""
    block = 1 | (16 << 3)
    return b"\x28\xb5\x2f\xfd" + bytes([0, (log - 10) << 3]) + block.to_bytes(3, "little") + b"0123456789abcde\n"


def a_table(columns: Dict[str, object], **how: object) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), out, **how)
    return out.getvalue()


def one_word(rows: int, length: int) -> Any:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(rows, np.int32)), ["x" * length])


def words_in_lists(rows: int, length: int) -> Any:
    return pyarrow.ListArray.from_arrays(pyarrow.array(np.arange(rows + 1, dtype=np.int32)), one_word(rows, length))


def a_sparse_member() -> bytes:
    member = tarfile.TarInfo("a.txt")
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = b"S"
    header[386:398], header[398:410] = b"00000000000\0", b"00000000001\0"
    header[483:495] = b"77777777777\0"
    return summed(header) + bytes(1024)


def summed(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def a_long_name() -> bytes:
    member = tarfile.TarInfo("a")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 6 << 30
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(512)


def a_negative_size() -> bytes:
    member = tarfile.TarInfo("a.txt")
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 11 + b"\x00"
    return summed(header) * 2 + bytes(1024)


def a_header(size: int) -> bytes:
    return struct.pack("<Q", size) + b"{" + b" " * 1000


def packed_index(text: str) -> bytes:
    body = compact_index.MAGIC + zlib.compress(text.encode(), 9)
    return body + hashlib.blake2b(body, digest_size=16).digest()


def each_its_own_box(count: int) -> bytes:
    """A shard's pattern in which every tensor is cut otherwise."""
    pattern = [[str(number) for number in range(count)], list(range(count))]
    own = [0, [["F32", [1], [0], [2]]] * count, []]
    return packed_index(json.dumps({"patterns": [pattern], "shards": [[0, own]]}))


def by_tensors(**content: object) -> bytes:
    return json.dumps({**tensor_parsers.BODY, **content}).encode()


def below_a_long_key(value: object) -> bytes:
    extra: Any = tensor_parsers.BODY["extra"]
    tree = {**tensor_parsers.TREE, "model": {"k" * 100_000: {str(number): value for number in range(20_000)}}}
    return by_tensors(extra={**extra, "shared": tree})


LARGE = 6 << 30
"""Bytes of a file of holes."""


def judged(data: bytes) -> None:
    """An attempt of one shard, whose digests are all that follows its header."""
    name = layout.shard_file(0)
    meta = json.dumps({"rank": 0, "world": 1, "run": "0" * 32})
    text = json.dumps(
        {"__metadata__": {"hpk": meta}, shard.digests_tensor_name(0): {"data_offsets": [0, LARGE]}}
    ).encode()
    path = places.file_of(struct.pack("<Q", len(text)) + text, f"holes/{checkpoint_parsers.ATTEMPT}/{name}")
    os.truncate(path, 8 + len(text) + LARGE)
    found = leftovers.classify_leftover(PosixStore(places.folder("holes")), checkpoint_parsers.ATTEMPT, "")
    assert found is leftovers.Leftover.PARTIAL


def hollow(data: bytes) -> None:
    """A small file of an attempt that is one hole, of as many bytes as such a file may have."""
    name = data.decode()
    path = places.file_of(b"", f"hollow/{checkpoint_parsers.ATTEMPT}/{name}")
    os.truncate(path, layout.LARGEST_SMALL)
    store = PosixStore(places.folder("hollow"))
    record = FileRecord(name, layout.LARGEST_SMALL, "blake2b:" + "0" * 32)
    place = rank_extra_state.RankStateLocation(0, layout.LARGEST_SMALL, "blake2b:" + "0" * 32)
    if name == layout.shard_file(0):
        rank_extra_state.read(store, checkpoint_parsers.ATTEMPT, 0, place)
    else:
        verify.read_verified_small_file(store, checkpoint_parsers.ATTEMPT, record)


BOMBS: Dict[str, tuple[str, Callable[[], bytes], int]] = {
    "parquet: one long word, many rows": ("data: parquet", lambda: a_table({"a": one_word(200_000, 20_000)}), 0),
    "parquet: many nulls": ("data: parquet", lambda: a_table({"a": pyarrow.nulls(60_000_000, pyarrow.int8())}), 0),
    "parquet: one number, many rows": (
        "data: parquet",
        lambda: a_table({"a": pyarrow.array(np.zeros(40_000_000, np.int64))}, compression="zstd"),
        0,
    ),
    "parquet: words in lists": ("data: parquet", lambda: a_table({"a": words_in_lists(100_000, 20_000)}), 0),
    "zstd: blocks of one byte": ("data: zstd", lambda: repeated(97, 2 << 30), 0),
    "zstd: blocks of line ends": ("data: zstd", lambda: repeated(10, 1 << 30), 0),
    "zstd: a window of 2 GiB": ("data: zstd", lambda: a_window(31), 0),
    "gzip: zeros": ("data: gzip", lambda: gzip.compress(bytes(400 << 20), 9), 0),
    "gzip: line ends": ("data: gzip", lambda: gzip.compress(b"\n" * (200 << 20), 9), 0),
    "jsonl: a line of holes": ("data: lines", lambda: b"{", LARGE),
    "tar: a member of holes": ("data: tar", a_sparse_member, 0),
    "tar: a name of 6 GiB": ("data: tar", a_long_name, 1 << 30),
    "tar: a size below nothing": ("data: tar", a_negative_size, 0),
    "safetensors: a header of gigabytes": ("import: safetensors", lambda: a_header(4 << 30), LARGE),
    "safetensors: a header of 99 MB": ("import: safetensors", lambda: a_header(99 << 20), 200 << 20),
    "DCP: a pickle of holes": ("import: DCP .metadata", lambda: b"\x80\x02", LARGE),
    "DCP: containers of one byte": ("import: DCP .metadata", lambda: b"\x80\x02" + b"]" * (8 << 20) + b".", 0),
    "DCP: a number of many bytes": ("import: DCP .metadata", lambda: b"\x80\x02X\xff\xff\xff\xff", 0),
    "torch: a tensor of a terabyte": ("import: torch tensor", lambda: a_claim(1 << 40), 0),
    "torch: a value of terabytes": ("import: torch value", lambda: a_claim(1 << 40), 0),
    "index.bin: a box for each tensor": ("checkpoint: index.bin, version 2", lambda: each_its_own_box(16_000), 0),
    "index.bin: packed brackets": (
        "checkpoint: index.bin, version 2",
        lambda: packed_index('{"patterns":[],"shards":[' + "[]," * (60 << 20) + "[]]}"),
        0,
    ),
    "extra.json: a long key before values": ("checkpoint: read by tensors", lambda: below_a_long_key({"a": 1}), 0),
    "extra.json: a long key before tensors": (
        "checkpoint: read by tensors",
        lambda: below_a_long_key({"$": "tensor", "name": "w"}),
        0,
    ),
    "index.bin: a tensor of a petabyte": (
        "checkpoint: read by tensors",
        lambda: by_tensors(table=[["w", "F32", [1 << 50], [], [], 0, 0]]),
        0,
    ),
    "a package: control files of gzip": (
        "bundle: Debian packages",
        lambda: tool_parsers.a_package(lambda data: gzip.compress(data + bytes(400 << 20), 9), ".gz"),
        0,
    ),
    "a package: control files of xz": (
        "bundle: Debian packages",
        lambda: tool_parsers.a_package(lambda data: lzma.compress(data + bytes(400 << 20), preset=0), ".xz"),
        0,
    ),
    "a shard: digests of holes": ("checkpoint: digests in a file of holes", lambda: b"", 0),
    "extra.json: a hole": ("checkpoint: a small file of holes", lambda: layout.EXTRA_FILE.encode(), 0),
    "index.bin: a hole": ("checkpoint: a small file of holes", lambda: layout.INDEX_FILE.encode(), 0),
    "a shard: a hole for its own tree": ("checkpoint: a small file of holes", lambda: layout.shard_file(0).encode(), 0),
    "index.bin: a box larger than its tensor": (
        "checkpoint: read by tensors",
        lambda: by_tensors(table=[["w", "F32", [1 << 20, 1 << 20], [0, 0], [2, 3], 0, 0]]),
        0,
    ),
}
PARSERS = (
    *format_parsers.PARSERS,
    *checkpoint_parsers.PARSERS,
    *tensor_parsers.PARSERS,
    *tool_parsers.PARSERS,
    Parser("checkpoint: digests in a file of holes", judged, (), lambda rng: b""),
    Parser("checkpoint: a small file of holes", hollow, (CheckpointError,), lambda rng: b""),
)
BY_NAME = {parser.name: parser for parser in PARSERS}


def a_claim(items: int) -> bytes:
    """A file of torch's whose pickle says that its storage has that many items."""
    made = format_parsers.a_torch_file(torch.zeros(7_777))
    return made.replace((7_777).to_bytes(2, "little"), (0xFFFF).to_bytes(2, "little"))


def peak(parser: Parser, data: bytes, size: int, place: Path) -> tuple[float, str]:
    """(MB that reading has taken over the process before, what it said)."""
    words = place / "said"
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["HPK_FUZZ_DIR"] = str(place)
            said = read_in(parser, data, size)
        except BaseException:
            said = f"-1\n{traceback.format_exc()}"
        words.write_text(said)
        os._exit(0)
    os.waitpid(pid, 0)
    first, _, rest = words.read_text().partition("\n")
    return float(first), rest


def read_in(parser: Parser, data: bytes, size: int) -> str:
    for seed in parser.seeds:
        parser.call(seed)
    if size:
        made = places.file_of
        vars(format_parsers)["file_of"] = lambda data, name: extended(made(data, name), size)
        if parser.name == "import: DCP .metadata":
            format_parsers.DCP_METADATA_SIZE = size
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = high_water()
    try:
        parser.call(data)
        said = "read"
    except parser.declared as err:
        said = f"{type(err).__name__}: {err}"
    return f"{high_water() - before}\n{said}"


def extended(path: str, size: int) -> str:
    os.truncate(path, size)
    return path


def high_water() -> float:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


QUICK = (
    "parquet: one long word",
    "zstd: blocks of one byte",
    "tar: a member",
    "safetensors: a header of giga",
    "extra.json: a long key before values",
    "a shard: digests",
    "extra.json: a hole",
)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one.startswith(QUICK) else pytest.mark.full) for one in BOMBS]
)
def test_a_bomb_takes_little_room(name: str, tmp_path: Path) -> None:
    parser, make, size = BOMBS[name]
    megabytes, said = peak(BY_NAME[parser], make(), size, tmp_path)
    print(f"{name}: {megabytes:.0f} MB: {said[:150]}")
    assert 0 <= megabytes < MOST, said
