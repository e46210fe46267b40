"""What comes soon is told to the data set: not with the first batch, each sample once, one portion ahead at least."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from hyperpod_kit.data import ElasticLoader, IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.errors import BadRecord, DataUnavailable


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    place = tmp_path_factory.mktemp("lines")
    (place / "a.jsonl").write_text("".join(f'{{"n": {n}, "text": "{"x" * 4000}"}}\n' for n in range(12_000)))
    return build_index([str(place)], str(place / "index")).index


class Noted(IndexedDataset):
    told: list[int]

    def ahead(self, numbers):
        self.told.extend(numbers.tolist())
        super().ahead(numbers)


@pytest.mark.parametrize("ranks", [1, 3])
def test_told_is_what_comes(index, ranks):
    data, received = Noted(index), []
    data.told = []
    loader = ElasticLoader(data, 50, collate_fn=list, seed=1, rank=0, ranks=ranks)
    for number, batch in enumerate(loader):
        received += [sample["n"] for sample in batch]
        if number == 0:
            assert data.told == []
        if number == 1:
            assert len(data.told) >= 4000, "16 MiB and more of what comes"
        assert len(data.told) < len(received) + 3 * 8192
        assert not data.told or len(received) >= 12_000 // ranks or len(data.told) > len(received)
    assert data.told == received, "the first portion has the batches in it that have come, which costs nothing"


def test_a_start_reads_nothing_but_its_own_lines(index):
    data = Noted(index)
    data.told = []
    first = next(iter(ElasticLoader(data, 50, collate_fn=list)))
    assert data.bytes_read == sum(len(json.dumps(sample)) for sample in first)


def test_with_workers_nothing_is_told(index):
    data = Noted(index)
    data.told = []
    next(iter(ElasticLoader(data, 50, collate_fn=list, num_workers=1)))
    assert data.told == []


def test_files_that_are_gone_meanwhile_are_an_error_where_they_are_read(tmp_path):
    for n in range(40):
        (tmp_path / f"{n:02}.npy").write_bytes(bytes([n]) * 1000)
    data = IndexedDataset(build_index([str(tmp_path)], str(tmp_path / "index")).index, patience=0.01)
    loader = ElasticLoader(data, 4, collate_fn=list)
    coming = loader.sample_order.at(0, np.arange(12)).tolist()
    os.unlink(tmp_path / f"{coming[9]:02}.npy")
    batches = iter(loader)
    for first in (0, 4):
        assert [batch[0] for batch in next(batches)] == coming[first : first + 4]
    with pytest.raises(DataUnavailable, match=f"{coming[9]:02}.npy"):
        next(batches)


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 1}',
        b"  [1, 2.5e3, null] ",
        b'"\\ud800"',
        '\ufeff{"bom": true}'.encode(),
        '{"ключ": "значение"}'.encode(),
        b"NaN",
        b"-0",
        b'"\xed\xa0\x80"',
        b'{"a": 1} {"b": 2}',
        b"{",
        b"[" * 100_000,
        b"\xff\xfe",
        b"1\x00",
        b"tru",
    ],
)
def test_json_is_decoded_as_its_library_does(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(line + b"\n")
    data = IndexedDataset(build_index([str(tmp_path)], str(tmp_path / "index")).index)
    try:
        expected = repr(json.loads(line))
    except (ValueError, RecursionError) as err:
        with pytest.raises(BadRecord, match=type(err).__name__):
            data[0]
    else:
        assert repr(data[0]) == expected
