"""Short lines come out of pieces of files that are in memory, where that is worth it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from hyperpod_kit.data import ElasticLoader, IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.reading import coalesced_reads

LINES = 40_000


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    place = tmp_path_factory.mktemp("lines")
    dice = random.Random(0)
    for name in "ab":
        lines = [f"{name}{n} " + "x" * dice.randrange(200) + dice.choice(["\n", "\r\n"]) for n in range(LINES)]
        lines[17] = "a17 " + "y" * 300_000 + "\n"
        (place / f"{name}.txt").write_bytes("".join(lines).encode())
    return build_index([str(place)], str(place / "index")).index


def text_of(index):
    return [
        line.rstrip("\r")
        for name in (0, 1)
        for line in open(index.file(name).path, newline="\n").read().split("\n")[:-1]
    ]


def test_an_epoch_reads_about_its_bytes_in_few_calls(index, monkeypatch):
    data = IndexedDataset(index)
    reads = []
    real = data._files.read
    monkeypatch.setattr(data._files, "read", lambda *range: reads.append(range) or real(*range))
    several = data._files.read_several
    monkeypatch.setattr(data._files, "read_several", lambda files, *how: reads.extend(files) or several(files, *how))
    found = [line for batch in ElasticLoader(data, 64, collate_fn=list) for line in batch]
    assert sorted(found[: 2 * LINES]) == sorted(text_of(index))
    assert len(reads) < LINES / 4 and data.bytes_read < 2 * index.bytes


def test_with_room_for_a_few_pieces_the_lines_are_the_same(index):
    every = text_of(index)
    data = IndexedDataset(index, memory=3 << 18)
    dice = random.Random(1)
    for _ in range(200):
        asked = [dice.randrange(2 * LINES) for _ in range(40)]
        assert data.__getitems__(asked) == [every[n] for n in asked]
    reader: Any = data._readers["lines"]
    assert len(reader.windows._pieces) <= 3


def test_pieces_that_are_not_worth_it_are_not_read(index, monkeypatch):
    """Where ranges have no neighbours, what is read is soon the ranges alone."""
    monkeypatch.setattr(coalesced_reads, "_MAX_BYTES_PER_RANGE", 1 << 30)
    data = IndexedDataset(index, memory=4 << 18)
    dice = random.Random(2)
    for _ in range(100):
        data.__getitems__([dice.randrange(2 * LINES) for _ in range(40)])
    before = data.bytes_read
    asked = [dice.randrange(2 * LINES) for _ in range(40)]
    data.__getitems__(asked)
    assert data.bytes_read - before == int(index.where(np.array(asked))[2].sum())


def test_what_comes_soon_is_read_in_pieces_at_once(index, monkeypatch):
    """No line of them is read by itself first."""
    data = IndexedDataset(index)
    data.ahead(np.arange(500, 1500))
    reads = []
    real = data._files.read
    monkeypatch.setattr(data._files, "read", lambda *range: reads.append(range) or real(*range))
    assert data.__getitems__(list(range(500, 1500))) == text_of(index)[500:1500]
    assert len(reads) <= 2


def test_the_first_batch_reads_its_own_lines(index):
    data = IndexedDataset(index)
    asked = list(range(500, 1500))
    data.__getitems__(asked)
    assert data.bytes_read < 1000 * 220


def test_long_lines_are_read_while_they_are_gone_through(tmp_path, monkeypatch):
    """No batch of them lies in memory twice, read and decoded; a file that another call closes meanwhile is no other's
    bytes."""
    lines = [f"{n} " + chr(97 + n % 26) * 60_000 for n in range(40)]
    for part in range(4):
        (tmp_path / f"{part}.txt").write_text("\n".join(lines[part * 10 : part * 10 + 10]))
    index = build_index([str(tmp_path)], str(tmp_path / "index")).index
    events: list[Any] = []

    def transform(line):
        events.append("made")
        for path in [index.file(number).path for number in range(4)]:
            data._files.close_and_forget_mount(path)
        return line

    data = IndexedDataset(index, transform=transform)
    real = data._files.read_several
    monkeypatch.setattr(data._files, "read_several", lambda files, *how: events.append(len(files)) or real(files, *how))
    asked = [7, 31, 2, 39, 18, 5, 22, 11, 38]
    assert data.__getitems__(asked) == [lines[n] for n in asked]
    assert events == [5, *["made"] * 5, 4, *["made"] * 4]
