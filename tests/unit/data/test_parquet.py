"""Rows of Parquet are what pyarrow makes of them, whatever their columns are, however they are written, in whatever
order they are asked for; and how often a row group is decoded for them."""

from __future__ import annotations

import datetime
import decimal
import functools
import io
import random
import struct
from typing import Any, Dict

import pytest

from hyperpod_kit.data import ElasticLoader, IndexedDataset, ShuffledOrder
from hyperpod_kit.data.formats import parquet_groups, parquet_pages
from hyperpod_kit.data.formats.parquet import ParquetReader
from hyperpod_kit.data.formats.parquet_row_group import value_reader
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.errors import BadRecord

pyarrow = pytest.importorskip("pyarrow", reason="the package pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="the package pyarrow is not installed")

ROWS = 240


@functools.lru_cache(1)
def columns():
    rng = random.Random(1)

    def some(make, nulls=0.2):
        return [None if rng.random() < nulls else make() for _ in range(ROWS)]

    def word():
        return "".join(rng.choices("abcé\U0001f600\0", k=rng.randint(0, 9)))

    def moment():
        return datetime.datetime(2026, 1, 1) + datetime.timedelta(microseconds=rng.randrange(10**13))

    return {
        "number": pyarrow.array(some(lambda: rng.randrange(-(2**63), 2**63)), pyarrow.int64()),
        "large": pyarrow.array(some(lambda: rng.randrange(2**64)), pyarrow.uint64()),
        "small": pyarrow.array(some(lambda: rng.randrange(-128, 128), 0), pyarrow.int8()),
        "real": pyarrow.array(some(lambda: rng.choice([rng.random(), float("nan"), float("-inf"), -0.0]))),
        "half": pyarrow.array(some(rng.random, 0), pyarrow.float32()),
        "yes": pyarrow.array(some(lambda: rng.random() < 0.5), pyarrow.bool_()),
        "nothing": pyarrow.nulls(ROWS),
        "text": pyarrow.array(some(word), pyarrow.string()),
        "long text": pyarrow.array(some(lambda: word() * 50), pyarrow.large_string()),
        "one word": pyarrow.array(["a word"] * ROWS),
        "text of each": pyarrow.array(some(word, 0), pyarrow.string()),
        "long text of each": pyarrow.array(some(lambda: word() * 50, 0), pyarrow.large_string()),
        "binary of each": pyarrow.array(some(lambda: rng.randbytes(rng.randrange(40)), 0), pyarrow.large_binary()),
        "number of each": pyarrow.array(some(lambda: rng.randrange(-(2**63), 2**63), 0), pyarrow.int64()),
        "large of each": pyarrow.array(some(lambda: rng.randrange(2**64), 0), pyarrow.uint64()),
        "real of each": pyarrow.array(some(lambda: rng.choice([rng.random(), float("nan"), -0.0]), 0)),
        "binary": pyarrow.array(some(lambda: rng.randbytes(rng.randrange(40))), pyarrow.binary()),
        "fixed": pyarrow.array(some(lambda: rng.randbytes(7)), pyarrow.binary(7)),
        "decimal": pyarrow.array(
            some(lambda: decimal.Decimal(rng.randrange(-(10**20), 10**20)).scaleb(-5)), pyarrow.decimal128(30, 5)
        ),
        "day": pyarrow.array(some(lambda: datetime.date(2026, 1, 1 + rng.randrange(28))), pyarrow.date32()),
        "time": pyarrow.array(some(lambda: datetime.time(rng.randrange(24), 1, 2, 345)), pyarrow.time64("us")),
        "moment": pyarrow.array(some(moment), pyarrow.timestamp("us")),
        "zoned": pyarrow.array(some(moment), pyarrow.timestamp("ms", "Europe/Berlin"), safe=False),
        "span": pyarrow.array(some(lambda: datetime.timedelta(seconds=rng.randrange(9**9))), pyarrow.duration("us")),
        "dictionary": pyarrow.array(some(lambda: rng.choice(["x", "yy", "zzz"]))).dictionary_encode(),
        "list": pyarrow.array(some(lambda: some_of(rng, lambda: rng.choice([None, rng.randrange(99)])))),
        "lists of lists": pyarrow.array(
            some(lambda: some_of(rng, lambda: rng.choice([None, some_of(rng, word)]))),
            pyarrow.list_(pyarrow.list_(pyarrow.string())),
        ),
        "struct": pyarrow.array(some(lambda: {"a": rng.choice([None, 1, 2]), "b": {"c": rng.choice([None, word()])}})),
        "messages": pyarrow.array(
            some(lambda: some_of(rng, lambda: {"role": rng.choice(["user", "assistant"]), "content": word() * 9})),
        ),
        "map": pyarrow.array(
            some(lambda: [(word(), rng.randrange(9)) for _ in range(3)]),
            pyarrow.map_(pyarrow.string(), pyarrow.int64()),
        ),
    }


def some_of(rng, make):
    return [make() for _ in range(rng.randrange(4))]


WRITTEN: Dict[str, Dict[str, Any]] = {
    "as it is by itself": {},
    "version 2 pages, zstd": {"data_page_version": "2.0", "compression": "zstd"},
    "small pages and dictionaries": {"data_page_size": 500, "dictionary_pagesize_limit": 700, "compression": "gzip"},
    "no dictionaries, not compressed": {"use_dictionary": False, "compression": "none"},
    "lz4, brotli's neighbour": {"compression": "lz4", "write_page_index": True},
    "delta": {
        "use_dictionary": False,
        "column_encoding": {"text": "DELTA_BYTE_ARRAY", "long text": "DELTA_LENGTH_BYTE_ARRAY"},
    },
}


def written(place, table, **how):
    place.mkdir()
    parquet.write_table(table, place / "a.parquet", **how)
    return build_index([str(place)], str(place / "index")).index


def test_a_value_is_what_a_scalar_gives():
    for name, values in columns().items():
        for part in (values, values[7:60], values[:0], pyarrow.chunked_array([values[:5], values[5:]])):
            read = value_reader(part)
            assert repr([read(row) for row in range(len(part))]) == repr(part.to_pylist()), name


def test_a_text_that_is_not_utf_8_raises_as_a_scalar_does():
    offsets, data = pyarrow.py_buffer(struct.pack("<3i", 0, 2, 4)), pyarrow.py_buffer(b"ok\xff\xfe")
    values = pyarrow.StringArray.from_buffers(2, offsets, data)
    read = value_reader(values)
    assert read(0) == "ok"
    for broken in (lambda: read(1), lambda: values[1].as_py()):
        with pytest.raises(UnicodeDecodeError):
            broken()


HUGE = 1 << 50
ROOM = {
    "all is decoded at once": lambda column, size: size,
    "words by way of numbers": lambda column, size: HUGE if column.is_top_level_byte_array else size,
    "words stay numbers": lambda column, size: HUGE if column.is_top_level_byte_array else size,
    "a few rows at a time": lambda column, size: HUGE,
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("room", ROOM)
def test_rows_are_what_pyarrow_makes_of_them(tmp_path, how, room, monkeypatch):
    table = pyarrow.table(columns())
    index = written(tmp_path / "corpus", table, row_group_size=70, **WRITTEN[how])
    real = parquet_pages.max_decoded_size
    monkeypatch.setattr(parquet_pages, "max_decoded_size", lambda column, *how: ROOM[room](column, real(column, *how)))
    if room == "words stay numbers":
        monkeypatch.setattr(parquet_groups, "decode_dictionaries_within", lambda table, *how: table)
    data = IndexedDataset(index, memory=20_000 if room == "words stay numbers" else 1 << 30)
    read = parquet.read_table(tmp_path / "corpus" / "a.parquet")
    expected = [{name: read.column(name)[row].as_py() for name in read.column_names} for row in range(ROWS)]
    order = random.Random(2).sample(range(ROWS), ROWS)
    for begin in range(0, ROWS, 60):
        some = order[begin : begin + 60]
        assert repr(data.__getitems__(some)) == repr([expected[number] for number in some])
    assert repr(data[7]) == repr(expected[7])


def groups_of(raw):
    """The row groups of a file in memory."""
    return parquet_groups.ParquetGroups("a.parquet", len(raw), lambda at, size: raw[at : at + size])


def in_memory(table, **how):
    out = io.BytesIO()
    parquet.write_table(table, out, **how)
    return out.getvalue()


def sizes_of(raw):
    """(bytes at most, as the pages say; bytes that pyarrow decodes it to) of the first row group."""
    groups = groups_of(raw)
    columns = groups._footer.columns_of_group(0)
    return sum(
        groups._max_decoded_size(one, groups._read_checked_page_headers(one), 0) for one in columns
    ), parquet.read_table(io.BytesIO(raw)).nbytes


WORDS = {
    "texts": pyarrow.array([f"{number:0150d}" for number in range(20_000)]),
    "one long word": pyarrow.array(["x" * 2000] * 1000),
    "words in lists": pyarrow.array([["y" * 900, "z"]] * 1000),
    "fixed": pyarrow.array([b"0123456"] * 1000, pyarrow.binary(7)),
    "nulls": pyarrow.nulls(5000, pyarrow.string()),
}


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("how", WRITTEN)
def test_no_row_group_becomes_larger_than_its_pages_say(name, how):
    how = {one: value for one, value in WRITTEN[how].items() if one != "column_encoding"}
    at_most, found = sizes_of(in_memory(pyarrow.table({"text": WORDS[name]}), **how))
    assert found <= at_most + 1024
    assert at_most < 40 * found + 10_000 or "text" in name


def test_words_that_repeat_the_one_before_count_whole():
    table = pyarrow.table({"text": ["x" * 5000 + str(number) for number in range(1000)]})
    raw = in_memory(table, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    assert len(raw) < 50_000
    at_most, found = sizes_of(raw)
    assert found > 5_000_000 and at_most >= found


def test_texts_that_no_dictionary_has_room_for_are_an_ordinary_file():
    """60,000 different texts in a row group, as writers make it: a dictionary of the first ones, then the texts. Each
    few rows of it were counted with the words of all before them, and the file was refused as one that grows."""
    texts = [f"{number:0150d}" for number in range(60_000)]
    group = groups_of(in_memory(pyarrow.table({"text": texts}), compression="zstd")).decode_group(0)
    assert [group.read_row_counting_down(number)["text"] for number in (0, 7_000, 59_999)] == [
        texts[0],
        texts[7_000],
        texts[59_999],
    ]
    assert group.size > 60_000 * 150  # texts, not numbers of a dictionary


def test_a_long_word_that_is_repeated_stays_a_number():
    words = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 50_000, pyarrow.int32()), ["x" * 9000])
    table = pyarrow.table({"text": words}).replace_schema_metadata(None)
    raw = in_memory(table, store_schema=False)
    group = groups_of(raw).decode_group(0)
    assert group.size < 1_000_000 < 50_000 * 9000 and group.read_row_counting_down(49_999) == {"text": "x" * 9000}


def test_two_columns_of_one_name_are_no_record():
    with pytest.raises(BadRecord, match="two columns have the same name"):
        groups_of(in_memory(pyarrow.table([pyarrow.array([1]), pyarrow.array([2])], ["a", "a"]))).decode_group(0)


def test_no_dictionary_at_place_nothing():
    """As old writers have it who have no dictionary."""
    columns = groups_of(in_memory(pyarrow.table({"a": [1, 2, 3]}), use_dictionary=False))._footer.columns_of_group(0)
    assert columns[0].dictionary_page is None
    assert columns[0]._replace(dictionary_page=0).first_page_offset == columns[0].first_page_offset


@pytest.fixture
def decoded(monkeypatch):
    """The row groups that are decoded, as they are."""
    found = []
    real = parquet_groups.ParquetGroups.decode_group
    monkeypatch.setattr(
        parquet_groups.ParquetGroups, "decode_group", lambda self, number: found.append(number) or real(self, number)
    )
    return found


def test_a_batch_decodes_each_row_group_once_however_little_memory_there_is(tmp_path, decoded):
    index = written(tmp_path / "corpus", pyarrow.table({"n": range(1000)}), row_group_size=100)
    data = IndexedDataset(index, memory=1 << 20)
    reader = data._reader_for_format("parquet")
    assert isinstance(reader, ParquetReader)
    reader._memory = 1000  # of which one has room
    order = random.Random(3).sample(range(1000), 100)
    assert [row["n"] for row in data.__getitems__(order)] == order
    assert sorted(decoded) == list(range(10))


def test_a_first_batch_decodes_the_row_groups_of_its_rows_alone(tmp_path, decoded):
    index = written(tmp_path / "corpus", pyarrow.table({"n": range(6400)}), row_group_size=100)
    data = IndexedDataset(index)
    order = ShuffledOrder(len(data), 1, block=100, lanes=1)
    assert len(next(iter(ElasticLoader(data, 64, order=order, collate_fn=list)))) == 64
    assert len(decoded) == 1


def test_what_has_given_all_its_rows_takes_no_memory(tmp_path, decoded):
    index = written(tmp_path / "corpus", pyarrow.table({"text": ["x" * 100] * 4000}), row_group_size=100)
    data = IndexedDataset(index, memory=200_000)
    reader = data._reader_for_format("parquet")
    assert isinstance(reader, ParquetReader)
    most = 0
    for batch in ElasticLoader(data, 50, order=ShuffledOrder(len(data), 1, block=100, lanes=4), collate_fn=list):
        assert len(batch) == 50
        most = max(most, len(reader._groups))
    assert most <= 8 and len(decoded) == 40
    assert reader._cached_bytes == sum(group.size for group in reader._groups.values())
    kept = [group for file in reader._opened.values() for group in file.cached if group is not None]
    assert set(kept) == set(reader._groups.values())
