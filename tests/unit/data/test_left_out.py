"""What is no file is left out by all that go through a directory, and said; links to files are files."""

from __future__ import annotations

import os
import socket

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.data import IndexedDataset
from hyperpod_kit.data.bulk.stage import stage
from hyperpod_kit.data.index.build import build_index


@pytest.fixture
def odd(tmp_path, caplog):
    """A directory as a download's cache is one: links to files elsewhere; and what is no file."""
    caplog.set_level("WARNING", "hyperpod_kit.data")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1f").write_text("one\n")
    folder = tmp_path / "odd"
    (folder / "below").mkdir(parents=True)
    (folder / "real.txt").write_text("two\n")
    (folder / "below" / "linked.txt").symlink_to(tmp_path / "blobs" / "1f")
    (folder / "gone.txt").symlink_to(tmp_path / "none")
    (folder / "blobs").symlink_to(tmp_path / "blobs")
    os.mkfifo(folder / "pipe.txt")
    place = os.getcwd()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(folder)
        server.bind("socket.txt")
        os.chdir(place)
    return folder


def said(caplog):
    found = [record.getMessage() for record in caplog.records if "left out below" in record.getMessage()]
    caplog.clear()
    return found


def test_an_index_says_it(odd, tmp_path, caplog):
    index = build_index([str(odd)], str(tmp_path / "index")).index
    assert sorted(IndexedDataset(index)[number] for number in range(len(index))) == ["one", "two"]
    (line,) = said(caplog)
    assert all(part in line for part in ("1 links to directories", "1 broken links", "2 fifos, sockets or devices"))


def test_merge_says_it_and_follows_links_to_files(odd, tmp_path, caplog):
    assert run_command_line(["data", "merge", str(odd), str(tmp_path / "merged")]) == 0
    assert len(said(caplog)) == 1
    assert run_command_line(["data", "split", str(tmp_path / "merged"), str(tmp_path / "again")]) == 0
    files = {path.relative_to(tmp_path / "again").as_posix(): path for path in (tmp_path / "again").rglob("*.txt")}
    assert {name: path.read_text() for name, path in files.items()} == {
        "real.txt": "two\n",
        "below/linked.txt": "one\n",
    }
    assert not any(path.is_symlink() for path in files.values())
    links = tmp_path / "links"
    links.mkdir()
    (links / "a").symlink_to(tmp_path / "blobs" / "1f")
    assert run_command_line(["data", "merge", str(links), str(tmp_path / "of-links")]) == 0
    assert run_command_line(["data", "merge", str(links / "a"), str(tmp_path / "of-a-file")]) == 3


def test_stage_says_it_and_keeps_holes(odd, tmp_path, caplog):
    with open(odd / "holes.bin", "wb") as stream:
        stream.write(b"begin")
        stream.seek(50 << 20)
        stream.write(b"end")
        stream.truncate(80 << 20)
    stage(str(odd), str(tmp_path / "copy"))
    assert len(said(caplog)) == 1
    copy = tmp_path / "copy" / "holes.bin"
    assert copy.read_bytes() == (odd / "holes.bin").read_bytes()
    assert copy.stat().st_blocks * 512 < 10 << 20


def test_merge_says_where_holes_become_zeros(tmp_path, caplog):
    caplog.set_level("WARNING", "hyperpod_kit.data")
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "whole.bin").write_bytes(os.urandom(3 << 20))
    assert run_command_line(["data", "merge", str(folder), str(tmp_path / "first")]) == 0 and "holes" not in caplog.text
    with open(folder / "holes.bin", "wb") as stream:
        stream.truncate(5 << 20)
    assert run_command_line(["data", "merge", str(folder), str(tmp_path / "second")]) == 0
    assert "1 file with holes below" in caplog.text and "holes are zeros in a tar" in caplog.text
