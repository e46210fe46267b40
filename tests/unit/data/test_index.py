"""An index says where each line lies, goes on after a kill, reads only what has changed, and refuses changed files."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.data import IndexedDataset, SampleIndex
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.reading import digests
from hyperpod_kit.errors import BadRecord, ChangedFile, DataError, DataUnavailable
from tests.support.examples import examples


def indexed(folder, **how):
    return IndexedDataset(build_index([str(folder)], **how).index)


def test_json_lines_of_several_files(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"id": f"{name}{n}"}) + "\n" for n in range(5)))
    data = indexed(tmp_path)
    assert [data[n]["id"] for n in range(10)] == [f"a{n}" for n in range(5)] + [f"b{n}" for n in range(5)]
    assert data.__getitems__([9, 0])[0]["id"] == "b4"


@examples(60)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=20)), st.data())
def test_text_across_pieces_with_any_ends_of_lines(tmp_path_factory, lines, data):
    """Characters of several bytes lie across pieces; \\r\\n and \\n are mixed; the last line may have no end."""
    folder = tmp_path_factory.mktemp("text")
    ends = [data.draw(st.sampled_from(["\n", "\r\n"])) for _ in lines]
    if ends and data.draw(st.booleans()):
        ends[-1] = ""
    raw = "".join(line + end for line, end in zip(lines, ends, strict=True)).encode()
    (folder / "a.txt").write_bytes(raw)
    wanted = [line for line in lines if line]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "PIECE_BYTES", 5)
        if not wanted:
            with pytest.raises(DataError, match="without any sample"):
                build_index([str(folder)])
            return
        found = indexed(folder)
    assert [found[n] for n in range(len(found))] == wanted


def test_an_empty_file_among_others(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text("one")
    (tmp_path / "c.txt").write_text("")
    data = indexed(tmp_path)
    assert len(data) == 1 and data[0] == "one"


@pytest.mark.full
def test_offsets_beyond_four_gigabytes(tmp_path):
    path, beyond = tmp_path / "big.txt", (4 << 30) + 4097
    with open(path, "wb") as stream:
        stream.write(b"first\n")
        stream.seek(beyond)
        stream.write(b"\nlast\n")
    with open(path, "r+b") as stream:
        for place in range(100 << 20, beyond, 100 << 20):  # the holes are lines that can be
            stream.seek(place)
            stream.write(b"\n")
    found = build_index([str(path)], str(tmp_path / "index")).index
    data = IndexedDataset(found)
    assert data[0] == "first" and data[len(data) - 1] == "last"
    assert int(found.where(np.array([len(data) - 1]))[1][0]) == beyond + 1


def test_nothing_is_read_again_and_only_what_changed(tmp_path):
    for n in range(4):
        (tmp_path / f"{n}.txt").write_text(f"{n}\n")
    first = build_index([str(tmp_path)])
    again = build_index([str(tmp_path)])
    assert (first.read, first.reused, again.read, again.reused) == (4, 0, 0, 4)
    (tmp_path / "2.txt").write_text("two\n2\n")
    changed = build_index([str(tmp_path)])
    assert (changed.read, changed.reused, changed.index.samples) == (1, 3, 5)
    assert first.index.data == again.index.data != changed.index.data


def test_it_goes_on_where_a_run_was_cut(tmp_path):
    for n in range(9):
        (tmp_path / f"{n}.txt").write_text(f"line {n}\n" * 10)
    whole = build_index([str(tmp_path)])
    (parts,) = (tmp_path / ".hpk-index" / "parts").iterdir()
    data = parts.read_bytes()
    for cut in (0, 1, 30, len(data) // 2, len(data) - 1):
        parts.write_bytes(data[:cut])
        os.unlink(tmp_path / ".hpk-index" / "index.json")
        found = build_index([str(tmp_path)])
        assert found.index.data == whole.index.data and found.read + found.reused == 9
        assert (found.reused > 0) == (cut > 200)


def test_a_changed_file_is_refused_with_both_fingerprints(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    data = indexed(tmp_path)
    then = path.stat()
    path.write_text("one\nTWO\n")
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns + 1000))
    with pytest.raises(ChangedFile) as caught:
        data[0]
    assert f"{then.st_mtime_ns / 1e9:.6f}" in str(caught.value) and "8 bytes" in str(caught.value)
    assert f"{(then.st_mtime_ns + 1000) / 1e9:.6f}" in str(caught.value)


def test_a_file_that_is_cut_while_it_is_open_gives_no_shorter_samples(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo three four\n")
    data = indexed(tmp_path)
    assert data[0] == "one"
    os.truncate(path, 8)
    with pytest.raises(ChangedFile, match=r"expected 19 bytes.*found 8 bytes"):
        data[1]


def test_moved_sources_are_the_same_data(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").write_text("one\ntwo\n")
    index = build_index([str(tmp_path / "here")], str(tmp_path / "index")).index
    os.rename(tmp_path / "here", tmp_path / "there")
    moved = SampleIndex.open(tmp_path / "index", sources=(str(tmp_path / "there"),))
    assert IndexedDataset(moved)[1] == "two" and moved.data == index.data
    with pytest.raises(DataUnavailable, match="No such file"):
        IndexedDataset(index, patience=0)[0]


def test_an_index_goes_to_another_process(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    data = indexed(tmp_path)
    assert data[0] == "one"
    assert pickle.loads(pickle.dumps(data))[1] == "two"


def test_what_is_no_json_names_its_place(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": \n')
    data = indexed(tmp_path)
    with pytest.raises(BadRecord, match=r"a\.jsonl, at 9 \(sample 1\): JSONDecodeError"):
        data[1]


def test_what_is_no_index_is_said(tmp_path):
    with pytest.raises(DataError, match="has no index"):
        SampleIndex.open(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        SampleIndex.open(tmp_path)
    with pytest.raises(DataError, match="no files of a known format"):
        build_index([str(tmp_path)])


def test_a_file_a_pattern_and_a_directory_are_sources(tmp_path):
    (tmp_path / "x").mkdir()
    for name in ("x/a.jsonl", "x/b.jsonl", "x/c.txt", "x/.hidden.txt", "x/_SUCCESS", "x/other.bin"):
        (tmp_path / name).write_text("1\n")
    out = str(tmp_path / "index")
    assert build_index([str(tmp_path / "x")], out).index.files == 3
    assert build_index([str(tmp_path / "x" / "*.jsonl")], out).index.files == 2
    assert build_index([str(tmp_path / "x" / "c.txt")], out).index.files == 1
    assert build_index([str(tmp_path / "**" / "*.txt"), str(tmp_path / "x" / "a.jsonl")], out).index.files == 2
    assert build_index([str(tmp_path / "x")], out).passed_over == 1
