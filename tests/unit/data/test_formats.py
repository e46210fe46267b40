"""Every format gives back what was written, by numbers, in any order; what is damaged is named."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shutil
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.data import ElasticLoader, IndexedDataset, ShuffledOrder
from hyperpod_kit.data.formats import compressed
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.errors import BadRecord, DataError
from tests.support.examples import examples


def indexed(folder, **how):
    return IndexedDataset(build_index([str(folder)], str(folder) + ".index").index, **how)


def every(data, seed=0):
    """All samples, read in another order than they lie in."""
    numbers = list(range(len(data)))
    random.Random(seed).shuffle(numbers)
    found = dict(zip(numbers, data.__getitems__(numbers), strict=True))
    return [found[number] for number in range(len(data))]


def zstd(raw):
    zstandard = pytest.importorskip("zstandard", reason="the package zstandard is not installed")
    return zstandard.ZstdCompressor().compress(raw)


PACKED = {"gz": gzip.compress, "zst": zstd}


@pytest.mark.parametrize("ending", PACKED)
@examples(40)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=30), min_size=1),
    st.data(),
)
def test_compressed_lines_across_members(tmp_path_factory, ending, lines, data):
    """Members are cut anywhere, in the middle of a character too."""
    folder = tmp_path_factory.mktemp("packed") / "corpus"
    folder.mkdir()
    raw = "".join(line + data.draw(st.sampled_from(["\n", "\r\n"])) for line in lines).encode()
    if data.draw(st.booleans()):
        raw = raw.rstrip(b"\r\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    parts = [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    (folder / f"a.txt.{ending}").write_bytes(b"".join(map(PACKED[ending], parts)))
    wanted = [line for line in lines if line]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compressed, "_PIECE_BYTES", 7)
        if not wanted:
            with pytest.raises(DataError, match="without any sample"):
                indexed(folder)
            return
        assert every(indexed(folder, memory=10)) == wanted


@pytest.mark.parametrize("ending", PACKED)
def test_one_member_is_read_of_many(tmp_path, ending):
    folder = tmp_path / "corpus"
    folder.mkdir()
    members = [
        PACKED[ending](
            "".join(json.dumps({"n": m * 100 + n, "x": random.Random(n).random()}) + "\n" for n in range(100)).encode()
        )
        for m in range(50)
    ]
    (folder / f"a.jsonl.{ending}").write_bytes(b"".join(members))
    data = indexed(folder)
    assert data[2500]["n"] == 2500 and data.bytes_read <= len(members[25]) + 8
    assert [one["n"] for one in every(data)] == list(range(5000))


def test_a_large_member_is_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "_MAX_MEMORY_BYTES", 1000)
    monkeypatch.setattr(compressed, "_MIN_FREE_BYTES", 0)
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt.gz").write_bytes(gzip.compress("".join(f"line {n}\n" for n in range(5000)).encode()))
    data = indexed(folder)
    assert every(data) == [f"line {n}" for n in range(5000)]
    (member,) = data._readers["gzip"]._members.values()
    assert member.bytes_in_memory == 0 and member.size > 1000


def test_a_corrupt_gzip_member_is_named_with_its_place(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    good = gzip.compress(b"one\ntwo\n" * 100)
    bad = bytearray(gzip.compress(random.Random(0).randbytes(5000)))
    bad[2500] ^= 0xFF
    path = folder / "a.txt.gz"
    path.write_bytes(good + bytes(bad) + good)
    with pytest.raises(DataError, match=f"{path} cannot be indexed: the gzip member at {len(good)} is corrupt"):
        indexed(folder)
    path.write_bytes(good + good[:-6])
    with pytest.raises(DataError, match=f"the gzip member at {len(good)} is cut off"):
        indexed(folder)
    path.write_bytes(good + b"\0" * 512)
    assert len(indexed(folder)) == 200


def test_a_member_that_became_corrupt_is_a_bad_record(tmp_path):
    """Its bytes changed, its size and time did not: what a disk does."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    path = folder / "a.txt.gz"
    members = [gzip.compress("".join(f"{m} {n}\n" for n in range(50)).encode()) for m in range(4)]
    path.write_bytes(b"".join(members))
    data = indexed(folder)
    before = path.stat()
    bad = bytearray(path.read_bytes())
    bad[len(members[0]) + len(members[1]) // 2] ^= 0xFF
    path.write_bytes(bad)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BadRecord, match=rf"{path}: the gzip member at {len(members[0])} is corrupt"):
        data[70]
    assert data[10] == "0 10" and data[120] == "2 20", "the other members are good"
    loader = ElasticLoader(indexed(folder), 10, collate_fn=list, on_bad="skip", epochs=1)
    found = [one for batch in loader for one in batch]
    assert loader.bad_records == 50 and len(found) == 200 and "2 0" in found and not [n for n in found if n[0] == "1"]


@pytest.mark.parametrize("ending", PACKED)
def test_what_was_compressed_well_comes_out_in_parts(tmp_path, ending, monkeypatch):
    """A hundred thousand lines in a kilobyte or two."""
    monkeypatch.setattr(compressed, "_MAX_OUTPUT", 5000)
    monkeypatch.setattr(compressed, "_INPUT_BYTES", 100)
    raw = b"the same line\n" * 100_000
    packed = PACKED[ending](raw)
    assert len(packed) < 8192
    kind = "gzip" if ending == "gz" else "zstd"
    parts = list(
        compressed.decompress(kind, "a", lambda at, size: packed[at : at + size], 0, len(packed), lambda at: None)
    )
    assert b"".join(parts) == raw and len(parts) > 1
    if ending == "gz":
        assert max(map(len, parts)) <= 5000


def test_members_on_disk_are_let_go_of_for_room(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "_MAX_MEMORY_BYTES", 100)
    monkeypatch.setattr(compressed, "_MIN_FREE_BYTES", 0)
    monkeypatch.setattr(compressed, "_MAX_MEMBERS_ON_DISK", 2)
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in range(5):
        (folder / f"{name}.txt.gz").write_bytes(gzip.compress("".join(f"{name} {n}\n" for n in range(100)).encode()))
    data = indexed(folder)
    assert len({one[0] for one in every(data)}) == 5
    assert len(data._readers["gzip"]._members) == 2
    monkeypatch.setattr(shutil, "disk_usage", lambda place: type("", (), {"free": 7}))
    with pytest.raises(DataError, match=r"a member of 490 plain bytes, and .* has 7 free"):
        indexed(folder)[0]


def parquet_modules():
    why = "the package pyarrow is not installed"
    return pytest.importorskip("pyarrow", reason=why), pytest.importorskip("pyarrow.parquet", reason=why)


def test_rows_of_parquet(tmp_path):
    pyarrow, parquet = parquet_modules()
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part in range(3):
        rows = [{"n": part * 1000 + n, "text": "é" * (n % 7), "list": [n, None]} for n in range(1000)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{part}.parquet", row_group_size=170)
    data = indexed(folder, memory=20_000)
    found = every(data)
    assert [one["n"] for one in found] == list(range(3000))
    assert found[1006] == {"n": 1006, "text": "é" * 6, "list": [6, None]}


def test_ten_thousand_row_groups(tmp_path):
    pyarrow, parquet = parquet_modules()
    folder = tmp_path / "corpus"
    folder.mkdir()
    with parquet.ParquetWriter(folder / "a.parquet", pyarrow.schema([("n", pyarrow.int64())])) as writer:
        for group in range(10_000):
            writer.write_table(pyarrow.table({"n": [group * 2, group * 2 + 1]}))
    data = indexed(folder)
    assert len(data) == 20_000 and [data[n]["n"] for n in (0, 19_999, 7777)] == [0, 19_999, 7777]
    data = indexed(folder)
    data[5000]
    size = (folder / "a.parquet").stat().st_size
    before = data.bytes_read
    data[5001]
    assert data.bytes_read == before < size, "one row group and the file's footer, not the file"


def test_large_row_groups_are_decoded_once_in_blocks_of_their_size(tmp_path, caplog, monkeypatch):
    """In the default order they are decoded again and again where few of them fit into memory: that is said, with the
    order in which they are not."""
    pyarrow, parquet = parquet_modules()
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part in range(2):
        table = pyarrow.table({"n": [part * 1000 + n for n in range(1000)], "text": ["x" * 200] * 1000})
        parquet.write_table(table, folder / f"{part}.parquet", row_group_size=100)
    decoded = []
    real = parquet.ParquetFile.read_row_group
    monkeypatch.setattr(
        parquet.ParquetFile, "read_row_group", lambda *asked, **how: decoded.append(asked[1]) or real(*asked, **how)
    )
    data = indexed(folder, memory=100_000)
    order = ShuffledOrder(len(data), 1, block=16)
    caplog.set_level("WARNING", "hyperpod_kit.data")
    assert len({row["n"] for batch in ElasticLoader(data, 50, order=order, collate_fn=list) for row in batch}) == 2000
    assert len(decoded) > 200
    assert re.findall(r"block=(\d+), lanes=(\d+)", caplog.text) == [("100", "2")], "once"
    decoded.clear()
    data = indexed(folder, memory=100_000)
    order = ShuffledOrder(len(data), 1, block=100, lanes=2)
    assert len({row["n"] for batch in ElasticLoader(data, 50, order=order, collate_fn=list) for row in batch}) == 2000
    assert sorted(decoded) == sorted([*range(10), *range(10)])


def test_what_is_no_parquet_is_said(tmp_path):
    parquet_modules()
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(DataError, match=r"a\.parquet cannot be indexed"):
        indexed(folder)


def members(*files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_samples_of_a_tar(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    long = "directory/" * 15 + "name-that-needs-a-header-of-its-own" * 3
    files = []
    for name in ("a/one", "a/two", long, "b/one"):
        files += [(f"{name}.jpg", name.encode() * 300), (f"{name}.cls.txt", b"7")]
    (folder / "a.tar").write_bytes(members(*files))
    found = every(indexed(folder))
    assert [one["__key__"] for one in found] == ["a/one", "a/two", long, "b/one"]
    assert all(one["jpg"] == one["__key__"].encode() * 300 and one["cls.txt"] == b"7" for one in found)


def test_files_that_macos_adds_to_a_tar_are_none(tmp_path):
    """They stand before the files that they are of, between those of one sample."""
    names = ("._1.jpg", "1.jpg", "._1.txt", "1.txt", "a/.DS_Store", "a/._2.jpg", "a/2.jpg", "__MACOSX/a/2.jpg", "3.jpg")
    (tmp_path / "a.tar").write_bytes(members(*((name, name.encode()) for name in names)))
    found = IndexedDataset(build_index([str(tmp_path / "a.tar")], str(tmp_path / "index")).index)
    assert [found[number] for number in range(len(found))] == [
        {"__key__": "1", "jpg": b"1.jpg", "txt": b"1.txt"},
        {"__key__": "a/2", "jpg": b"a/2.jpg"},
        {"__key__": "3", "jpg": b"3.jpg"},
    ]


def test_lines_of_blanks_are_no_samples_of_json(tmp_path):
    text = '{"n":1}\n   \n\t \r\n[]\n \n\r\n{"n":2}\n  '
    (tmp_path / "a.jsonl").write_text(text, newline="")
    (tmp_path / "a.txt").write_text(text, newline="")
    found = build_index([str(tmp_path / "a.jsonl")], str(tmp_path / "json"), check=True).index
    assert [IndexedDataset(found)[n] for n in range(len(found))] == [{"n": 1}, [], {"n": 2}]
    assert build_index([str(tmp_path / "a.txt")], str(tmp_path / "text")).index.samples == 7


@pytest.mark.parametrize("ending", PACKED)
def test_nor_are_they_in_compressed_files(tmp_path, ending):
    """Wherever the members are cut."""
    text = b'{"n":1}\n   \n\t \r\n[]\n \n\r\n{"n":2}\n' + b" " * 17 + b"\n  "
    for at in range(len(text)):
        packed = PACKED[ending](text[:at]) + PACKED[ending](text[at:])
        (tmp_path / f"a{at:03}.jsonl.{ending}").write_bytes(packed)
        (tmp_path / f"a{at:03}.txt.{ending}").write_bytes(packed)
    index = build_index([str(tmp_path)], str(tmp_path / "index")).index
    counts = {(".txt" in index.file(one).path): index.file(one).samples for one in range(index.files)}
    assert {index.file(one).samples for one in range(index.files)} == {4, 8} and counts == {False: 4, True: 8}
    data = IndexedDataset(index, decode=False)
    first = [data[number] for number in range(4)]
    assert first == [b'{"n":1}', b"[]", b'{"n":2}', b" " * 17]


def test_a_tar_that_is_cut_off_is_said(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.tar").write_bytes(members(("a.txt", b"x" * 5000))[:3000])
    with pytest.raises(DataError, match="cannot be indexed"):
        indexed(folder)


def test_images_are_files(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "cats").mkdir(parents=True)
    for n in range(300):
        (folder / "cats" / f"{n:03}.png").write_bytes(bytes([n % 256]) * (n + 1))
    (folder / "empty.png").write_bytes(b"")
    data = indexed(folder)
    assert len(data) == 300 and data.index.skipped == 1
    assert every(data) == [bytes([n % 256]) * (n + 1) for n in range(300)]


def test_formats_are_mixed_in_one_epoch(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("0\n1\n")
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"2\n3\n"))
    (folder / "c.jsonl").write_text("4\n5\n")
    found = [int(one) for batch in ElasticLoader(indexed(folder), 2, num_workers=1, collate_fn=list) for one in batch]
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
