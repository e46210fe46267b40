"""The default order: how well it mixes, and that a position goes on in the order in which it was saved."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.data import (
    ElasticLoader,
    IndexedDataset,
    MixDataset,
    PackedDataset,
    SampleIndex,
    ShuffledOrder,
    SpreadOrder,
    order_of,
)
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.loading.sample_log_check import check_sample_log
from hyperpod_kit.data.mixing import measure_mixing
from hyperpod_kit.data.order import block_cuts, default_order
from hyperpod_kit.data.order.block_cuts import BlockCuts
from hyperpod_kit.data.order.default_order import RowGroups, choose_shuffled_order
from hyperpod_kit.data.order.spread_order import LANES
from hyperpod_kit.data.reading import chunks, coalesced_reads, source_files
from hyperpod_kit.errors import CheckpointError
from tests.support.examples import examples


@examples(60)
@given(st.integers(1, 3000), st.integers(1, 60), st.integers(1, 30), st.integers(0, 5), st.integers(0, 2))
def test_an_epoch_has_every_sample_once(samples, block, lanes, seed, epoch):
    order = SpreadOrder(samples, seed, block, lanes)
    found = order.at(epoch, np.arange(samples))
    assert sorted(found.tolist()) == list(range(samples))
    places = np.arange(0, samples, 1 + samples // 7)
    assert (order.at(epoch, places) == found[places]).all()


def test_neighbours_and_single_places_agree():
    order = SpreadOrder(60_000, 1, 50, 96)
    places = np.arange(0, 60_000, 3)
    found = order.at(0, places)
    for n in range(0, len(places), 997):
        assert order.at(0, places[n : n + 1])[0] == found[n]


def test_the_order_is_the_one_that_positions_in_checkpoints_mean():
    found = SpreadOrder(200_003, 7, 33).at(2, np.arange(200_003)).astype("<i8")
    assert hashlib.blake2b(found.tobytes(), digest_size=8).hexdigest() == "0d67ca11bbe45544"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128])
def test_each_block_is_read_by_one_rank(ranks):
    order = SpreadOrder(LANES * 16 * 3, 0, block=16)
    of_rank = [set((order.at(0, np.arange(rank, order.samples, ranks)) // 16).tolist()) for rank in range(ranks)]
    assert sum(map(len, of_rank)) == LANES * 3


def test_what_is_read_side_by_side_lies_all_over_the_data():
    order = SpreadOrder(64 * 10 * 100, 3, block=10, lanes=64)
    for group in range(100):
        stretches = order.at(0, np.arange(group * 640, group * 640 + 64)) // 1000
        assert sorted(stretches.tolist()) == list(range(64)) != stretches.tolist()


class Sizes:
    """Of an index, what an order asks."""

    formats = ("lines",)

    def __init__(self, samples, size):
        self.samples, self.size = samples, size

    def __len__(self):
        return self.samples

    @property
    def bytes(self):
        return self.samples * self.size


@pytest.mark.parametrize(
    "samples, size", [(300, 10), (5_000, 1000), (2_000_000, 1000), (30_000_000, 20), (99_999, 9000), (400_000, 64_000)]
)
def test_the_default_mixes_as_a_uniform_shuffle(samples, size):
    order = choose_shuffled_order(Sizes(samples, size), 1)
    assert measure_mixing(order).share_of_uniform >= 0.8
    assert order.block * order.lanes * size <= (
        coalesced_reads.MEMORY_BYTES if size <= 4096 else source_files.MEMORY_BYTES
    )
    groups = samples / (order.block * order.lanes)
    assert groups < 1 or groups > 100 or groups % 1 > 0.9 or groups % 1 == 0, "no last group of few lanes"


def parquet(folder, groups, rows):
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for file in range(2):
        table = pyarrow.table({"n": list(range(groups * rows // 2)), "text": ["x" * 100] * (groups * rows // 2)})
        pyarrow.parquet.write_table(table, folder / f"{file}.parquet", row_group_size=rows)
    return build_index([str(folder)], str(folder / "index")).index


def test_of_row_groups_as_many_are_side_by_side_as_fit(tmp_path):
    index = parquet(tmp_path / "even", 40, 50)
    data = IndexedDataset(index)
    groups = data.row_groups()
    assert groups is not None and groups.rows == 50 and groups.bytes > 50 * 8
    assert (order_of(data).block, order_of(data).lanes) == (50, LANES)
    few = IndexedDataset(index, memory=5 * groups.bytes)
    assert (order_of(few).block, order_of(few).lanes) == (50, 4), "of five, a number that more ranks divide"
    decoded = [row["n"] for batch in ElasticLoader(few, 10, collate_fn=list) for row in batch]
    assert sorted(decoded) == sorted([*range(1000)] * 2)
    uneven = IndexedDataset(parquet(tmp_path / "uneven", 41, 50), memory=7 * groups.bytes)
    assert order_of(uneven).lanes == 3, "a block may be of two row groups"
    assert RowGroups(1, 1, 1) == (1, 1, 1)


# --- positions of other releases ------------------------------------------------------------------------------------

SAMPLES = 3000
OF_0_1_0 = {"format": "hpk-position/1", "position": 640, "last": "pad", "order": "shuffled", "seed": 7, "block": 1024}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    (place / "a.txt").write_text("".join(f"{n}\n" for n in range(SAMPLES)))
    return build_index([str(place)], str(place / "index")).index


def saved(index, **other):
    """As 0.1.0 wrote it: the default was 48 lanes of blocks of about 1 MiB."""
    return json.loads(json.dumps({**OF_0_1_0, "lanes": 48, "data": index.data, "samples": SAMPLES, **other}))


def epoch_of(loader):
    return [int(line) for batch in loader for line in batch]


def test_a_position_of_0_1_0_goes_on_in_its_order_to_the_end(index, tmp_path):
    before = ShuffledOrder(SAMPLES, 7, 1024, 48)
    loader = ElasticLoader(IndexedDataset(index), 64, seed=7, collate_fn=list, ledger=tmp_path / "ledger", launch="2")
    assert loader.sample_order == order_of(IndexedDataset(index), 7) != before
    loader.load_state_dict(saved(index))
    assert loader.sample_order == before
    every = np.arange(SAMPLES)
    assert epoch_of(loader)[: SAMPLES - 640] == before.at(0, every)[640:].tolist()
    assert epoch_of(loader)[:SAMPLES] == before.at(1, every).tolist(), "the epochs after it too"
    again = loader.state_dict()
    assert before.described().items() <= again.items()
    third = ElasticLoader(IndexedDataset(index), 64, seed=7, collate_fn=list)
    third.load_state_dict(again)
    assert third.sample_order == before and third.epoch == 2
    heads = [json.loads(path.read_text().splitlines()[0]) for path in (tmp_path / "ledger").iterdir()]
    assert [(head["order"], head["lanes"]) for head in heads] == [("shuffled", 48)], "and the ledger says which it is"
    assert not check_sample_log(tmp_path / "ledger").problems


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_go_on_in_it(index, ranks):
    before = ShuffledOrder(SAMPLES, 7, 1024, 48).at(0, np.arange(SAMPLES))[640:]
    found = []
    for rank in range(ranks):
        loader = ElasticLoader(IndexedDataset(index), 8, seed=7, rank=rank, ranks=ranks, collate_fn=list)
        loader.load_state_dict(saved(index))
        found.append(epoch_of(loader))
    step = [number for parts in zip(*found, strict=True) for number in parts]
    assert step[: SAMPLES - 640] == before.tolist()


def test_one_of_now_is_taken_after_one_of_then(index):
    loader = ElasticLoader(IndexedDataset(index), 64, seed=7, collate_fn=list)
    now = loader.state_dict()
    default = loader.sample_order
    loader.load_state_dict(saved(index))
    loader.load_state_dict(now)
    assert loader.sample_order == default


@pytest.mark.parametrize("other", [{"seed": 8}, {"data": "other"}, {"samples": 7}, {"lanes": 0}, {"block": True}])
def test_what_is_another_order_is_refused(index, other):
    loader = ElasticLoader(IndexedDataset(index), 64, seed=7, collate_fn=list)
    before = loader.sample_order
    with pytest.raises(CheckpointError, match=f"{next(iter(other))}: "):
        loader.load_state_dict(saved(index, **other))
    assert loader.sample_order == before and loader.position == 0


def test_an_order_that_was_given_stays_and_the_line_is_said(index):
    data = IndexedDataset(index)
    loader = ElasticLoader(data, 64, order=order_of(data, 7), collate_fn=list)
    with pytest.raises(CheckpointError) as caught:
        loader.load_state_dict(saved(index))
    assert "order=ShuffledOrder(len(data), 7, block=1024, lanes=48)" in str(caught.value.hint)


def test_windows_say_the_line_too(index):
    data = IndexedDataset(index)
    lengths = np.full(SAMPLES, 3, np.uint32)

    def loader(order):
        packed = PackedDataset(data, None, lengths, window=16, order=order)
        return ElasticLoader(packed, 4, order=packed.windows)

    with pytest.raises(CheckpointError) as caught:
        loader(order_of(data, 7)).load_state_dict(loader(ShuffledOrder(SAMPLES, 7, 1024)).state_dict())
    assert "order=ShuffledOrder(len(data), 7, block=1024, lanes=48), of its PackedDataset" in str(caught.value.hint)


# --- what a process keeps -------------------------------------------------------------------------------------------


def lines_of(folder, count, size):
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"{n:08} " + "x" * size + "\n" for n in range(count)))
    return build_index([str(folder)], str(folder / "index")).index


def windows_of(data: IndexedDataset) -> coalesced_reads.CoalescedReads:
    lines: Any = data._reader_for_format("lines")
    return lines.windows


def test_the_blocks_that_are_read_side_by_side_fit_into_memory(tmp_path, monkeypatch):
    """Each is read once, as one piece: of a tenth of all sizes, as the memory is."""
    monkeypatch.setattr(coalesced_reads, "MEMORY_BYTES", coalesced_reads.MEMORY_BYTES // 10)
    monkeypatch.setattr(default_order, "BLOCK_BYTES", default_order.BLOCK_BYTES // 10)
    monkeypatch.setattr(block_cuts, "BLOCK_BYTES", default_order.BLOCK_BYTES)
    index = lines_of(tmp_path / "lines", 60_000, 500)
    data = IndexedDataset(index, decode=False)
    assert index.bytes > 2 * coalesced_reads.MEMORY_BYTES
    loader = ElasticLoader(data, 256, collate_fn=list)
    most = 0
    for _ in loader:
        most = max(most, windows_of(data)._held_bytes)
    assert 0 < most <= coalesced_reads.MEMORY_BYTES
    assert data.bytes_read < 1.1 * index.bytes, "and none is read again"


def test_the_sets_of_a_mix_share_what_is_kept_and_open(tmp_path):
    index = lines_of(tmp_path / "lines", 1000, 50)
    sets = [IndexedDataset(index) for _ in range(300)]
    MixDataset({str(number): one for number, one in enumerate(sets)})
    assert sum(windows_of(one)._most for one in sets) <= 512 << 20
    assert sum(one._files._max_open_files for one in sets) <= 300 * 4


def test_objects_are_fetched_by_blocks(tmp_path, monkeypatch):
    """A chunk is a block; of a long one several, and of little data as long as can be."""
    index = lines_of(tmp_path / "lines", 5000, 50)
    cuts = BlockCuts(index)
    assert list(cuts.block_start_offsets_if_worth_cutting(index.file(0))) == []
    monkeypatch.setattr(block_cuts, "MEMORY_BYTES", 1000)
    monkeypatch.setattr(block_cuts, "BLOCK_BYTES", 1)
    cuts.set_samples_per_block(700)
    starts = index.places(np.arange(0, 5000, 700))[0].tolist()
    assert list(cuts.block_start_offsets_if_worth_cutting(index.file(0))) == starts
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 30_000)
    found = list(chunks.chunk_begin_offsets_and_size(index.file(0).size, starts))
    assert found == sorted({*starts, *(start + 30_000 for start in starts[:-1]), index.file(0).size})
    assert list(chunks.chunk_begin_offsets_and_size(70_000)) == [0, 30_000, 60_000, 70_000]


def test_samples_that_do_not_lie_in_their_order_are_read_by_themselves(tmp_path):
    """As whoever shares an index may have written them: no piece, and none of another sample's bytes."""
    index = lines_of(tmp_path / "lines", 2000, 50)
    starts = np.load(f"{index.folder}/starts.npy")
    np.save(f"{index.folder}/starts.npy", np.random.default_rng(1).permutation(starts))
    data = IndexedDataset(SampleIndex.open(index.folder))
    expected = {int(start): f"{n:08} " for n, start in enumerate(starts)}
    order = data.index.places(slice(0, 2000))[0].tolist()
    for _ in range(3):
        found = data.__getitems__(list(range(2000)))
        assert [line[:9] for line in found] == [expected[start] for start in order]
