"""Windows packed while training hold the same tokens whoever is killed; documents are filtered exactly."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.data import (
    ElasticLoader,
    FileOrder,
    IndexedDataset,
    MixOrder,
    PackedDataset,
    ShuffledOrder,
    lengths_of,
)
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.order.buckets import cumulate_weights_by_section
from hyperpod_kit.data.tokens import lengths as lengths_module
from hyperpod_kit.data.tokens.packing import packed_batch, padded
from hyperpod_kit.errors import CheckpointError, DataError
from tests.support.examples import examples
from tests.unit.data.killed_ranks import documents, encode, tokens, torture, windows


@pytest.fixture
def packed(tmp_path):
    def make(count=300, window=16, seed=4):
        return windows(tmp_path / f"corpus{count}-{window}", count, window, seed)

    return make


def stream(made, epoch):
    """An epoch's tokens, packed by hand."""
    data, order = made._dataset, made._order.at(epoch, np.arange(len(made._dataset)))
    tokens = [token for number in order.tolist() for token in encode(data[number])]
    return tokens[: len(made) * made._window]


def test_windows_are_the_epochs_documents_one_after_another(packed):
    made = packed()
    for epoch in range(2):
        numbers = range(epoch * len(made), (epoch + 1) * len(made))
        assert np.concatenate(made.__getitems__(numbers)).tolist() == stream(made, epoch)
    assert made[5].shape == (16,) and stream(made, 0) != stream(made, 1)


@examples(50)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(1, 25))
def test_any_lengths_and_any_window(tmp_path_factory, sizes, window):
    """Documents without a token, as long as a window, longer than several."""
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "a.txt").write_text("".join(f"{size}\n" for size in sizes))
    data = IndexedDataset(build_index([str(folder)]).index)

    def count(text):
        return [int(text)] * int(text)

    order = ShuffledOrder(len(sizes), 1, block=4, lanes=3)
    lengths = np.array(sizes, np.uint32)
    if sum(sizes) < window:
        with pytest.raises(DataError, match="tokens in total"):
            PackedDataset(data, count, lengths, window=window, order=order)
        return
    made = PackedDataset(data, count, lengths, window=window, order=order)
    whole = [size for n in order.at(0, np.arange(len(sizes))).tolist() for size in [sizes[n]] * sizes[n]]
    assert [one.tolist() for one in made.__getitems__(range(len(made)))] == [
        whole[n * window : (n + 1) * window] for n in range(len(made))
    ]


@pytest.mark.full
def test_tokens_under_kills_are_those_of_a_calm_run(packed, tmp_path):
    made = packed(count=900, window=8)
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    calm = torture(made, tmp_path / "calm", kills=0, epochs=2, seed=1, order=made.windows)
    killed = torture(made, tmp_path / "killed", kills=4, epochs=2, seed=2, order=made.windows)

    assert killed.report.is_exactly_once and killed.kills > 2 and tokens(calm) == tokens(killed)
    assert [(one.once, one.complete) for one in killed.report.epochs] == [(len(made), True)] * 2
    first = [token for at in sorted(calm.consumed) for window in calm.consumed[at] for token in window.tolist()]
    assert first[: len(made) * 8] == stream(made, 0)


def test_lengths_are_counted_once_and_go_on_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(lengths_module, "_SAMPLES_PER_RUN", 10)
    data = documents(tmp_path / "corpus", 95)
    want = [len(encode(data[n])) for n in range(95)]
    seen = []

    def cut(done, total):
        seen.append(done)
        if done >= 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lengths_of(data, encode, "bytes", progress=cut)
    seen.clear()
    assert lengths_of(data, encode, "bytes", progress=lambda done, total: seen.append(done)).tolist() == want
    assert seen[0] >= 50
    assert lengths_of(data, cast(Any, None), "bytes").tolist() == want, "nothing is encoded again"
    assert not [name for name in os.listdir(data.index.folder) if name.endswith(".parts")]


def test_another_tokenizer_than_was_counted_is_refused(packed, tmp_path):
    made = packed()
    made._encode = lambda text: [1]
    with pytest.raises(DataError, match="but was counted with"):
        made[0]


def test_another_window_is_another_order(packed):
    state = ElasticLoader(made := packed(window=16), 2, order=made.windows).state_dict()
    with pytest.raises(CheckpointError, match="window: 16 then, 8 now"):
        ElasticLoader(made := packed(window=8), 2, order=made.windows).load_state_dict(state)


def test_windows_of_other_lengths_are_another_order(packed):
    """As many windows, and other tokens in them: another tokenizer, or another filter."""
    made = packed(window=16)
    state = ElasticLoader(made, 2, order=made.windows).state_dict()
    lengths = np.array(made._lengths)
    lengths[[0, 1]] = lengths[[1, 0]]
    assert (lengths != made._lengths).any()
    other = PackedDataset(made._dataset, made._encode, lengths, window=16, order=made._order)
    with pytest.raises(CheckpointError, match="lengths: "):
        ElasticLoader(other, 2, order=other.windows).load_state_dict(state)


@examples(60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=400), st.integers(1, 20), st.integers(1, 6), st.integers(0, 2))
def test_a_section_weighs_what_its_samples_do(weights, block, lanes, epoch):
    """Those of an order's own sections, which are never put in order for it."""
    each = np.array(weights, np.uint32)
    order = ShuffledOrder(len(each), 5, block, lanes)
    found = cumulate_weights_by_section(order, epoch, each)
    every = np.cumsum(each[order.at(epoch, np.arange(len(each)))])
    assert found.positions[-1] == len(each) and len(found.positions) == -(-len(each) // (block * lanes))
    assert (found.weights == every[found.positions - 1]).all()
    assert cumulate_weights_by_section(MixOrder([order], [1], samples=7), 0, each).weights.tolist() == [each.sum()]


def test_files_are_sections_and_empty_ones_weigh_nothing(tmp_path):
    for number, count in enumerate((3, 0, 70, 1, 0)):
        (tmp_path / f"{number}.txt").write_text("".join(f"{n}\n" for n in range(count)))
    index = build_index([str(tmp_path)], str(tmp_path / "index")).index
    order, weights = FileOrder(index, 3), np.arange(1, len(index) + 1, dtype=np.uint32)
    for epoch in range(3):
        found = cumulate_weights_by_section(order, epoch, weights)
        every = np.cumsum(weights[order.at(epoch, np.arange(len(index)))])
        assert found.weights.tolist() == [int(every[end - 1]) if end else 0 for end in found.positions.tolist()]
    data = IndexedDataset(index)
    made = PackedDataset(data, lambda text: [int(text)] * 5, np.full(len(index), 5, np.uint32), window=9, order=order)
    whole = [int(data[n]) for n in order.at(1, np.arange(len(index))).tolist() for _ in range(5)]
    got = np.concatenate(made.__getitems__(range(len(made), 2 * len(made))))
    assert got.tolist() == whole[: 9 * len(made)]


def test_a_window_in_the_middle_takes_one_section(packed, monkeypatch):
    """A start works out where it goes on, and not the order of all documents."""
    made = packed(count=3000, window=16)
    asked = []
    monkeypatch.setattr(
        type(made._order),
        "at",
        lambda self, epoch, places, real=ShuffledOrder.at: (asked.append(len(places)), real(self, epoch, places))[1],
    )
    made[len(made) // 2]
    assert sum(asked) <= 2 * 16 * 6, "blocks of 16, 6 lanes"


def test_the_lengths_are_named_as_in_positions_of_earlier_releases(packed):
    assert packed(count=90, window=16).windows.described() == {
        "order": "shuffled",
        "samples": 63,
        "seed": 4,
        "block": 16,
        "lanes": 6,
        "documents": 90,
        "window": 16,
        "lengths": "60b51e2c3580c694d625341a754a155a",
    }


def test_windows_say_where_their_documents_begin(packed):
    made = packed(window=50)
    with_documents = PackedDataset(made._dataset, encode, made._lengths, window=50, order=made._order, documents=True)
    assert with_documents.windows.described() == made.windows.described()
    order = made._order.at(0, np.arange(len(made._dataset)))
    ends = np.cumsum(made._lengths[order], dtype=np.int64)
    for number in range(len(made)):
        window = with_documents[number]
        assert window["tokens"].tolist() == made[number].tolist()
        inside = sorted({int(end) - number * 50 for end in ends if number * 50 < end < (number + 1) * 50})
        assert window["cu_seqlens"].tolist() == [0, *inside, 50] and window["cu_seqlens"].dtype == np.int32
    loader = ElasticLoader(with_documents, 3, order=with_documents.windows, collate_fn=packed_batch, num_workers=1)
    batch = next(iter(loader))
    begins = batch["cu_seqlens"].tolist()
    assert begins[0] == 0 and begins[-1] == batch["tokens"].numel() == 150 and {50, 100} <= set(begins)
    lengths = np.diff(begins)
    assert batch["max_seqlen"] == lengths.max() and batch["tokens"].shape == batch["position_ids"].shape == (3, 50)
    assert batch["position_ids"].flatten().tolist() == [place for length in lengths for place in range(length)]
    assert batch["cu_seqlens"].dtype == torch.int32


def test_padding_to_a_length():
    tokens, mask = padded([5, 6, 7], 5, 9)
    assert tokens.tolist() == [5, 6, 7, 9, 9] and mask.tolist() == [1, 1, 1, 0, 0]
    assert padded([5, 6, 7], 2, 9)[0].tolist() == [5, 6]


def test_several_processes_that_count_at_once_count_once(tmp_path):
    """As ranks of a job do that all call it: one counts, and the others have its counts."""
    (tmp_path / "a.txt").write_text("".join("x" * (n % 9 + 1) + "\n" for n in range(9000)))
    data = IndexedDataset(build_index([str(tmp_path / "a.txt")], str(tmp_path / "index")).index)
    context = multiprocessing.get_context("fork")
    together, counted = context.Barrier(4), context.Value("i", 0)

    def count(queue):
        together.wait()

        def progress(done, total):
            with counted.get_lock():
                counted.value += done == total

        queue.put(int(lengths_of(data, list, "letters", processes=1, progress=progress).sum()))

    queue = context.Queue()
    ranks = [context.Process(target=count, args=(queue,)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    found = [queue.get(timeout=100) for _ in ranks]
    for rank in ranks:
        rank.join(100)
    assert found == [45000] * 4 and counted.value == 1
