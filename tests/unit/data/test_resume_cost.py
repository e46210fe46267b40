"""What a rank opens and reads to go on in the middle: its own samples, out of the blocks of its lanes alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.data import ElasticLoader, IndexedDataset, ShuffledOrder
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.numbers.deduplication import unique_with_counts
from hyperpod_kit.data.order.block_group import BlockGroup

SAMPLES, BLOCK = 60_000, 100


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    (place / "a.txt").write_text("".join(f"{n}\n" for n in range(SAMPLES)))
    return build_index([str(place)], str(place / "index")).index


@pytest.mark.parametrize(
    ("lanes", "ranks", "batch", "most"),
    [(48, 1, 16, 16), (48, 1, 256, 48), (48, 8, 128, 6), (48, 48, 32, 1), (1, 1, 16, 1), (1, 8, 4, 1)],
)
def test_a_resume_opens_the_blocks_of_its_lanes(index, lanes, ranks, batch, most):
    """One block a rank where there are as many ranks as lanes, or one lane: else as many as a rank has lanes, or
    samples in its batch. A step over the end of such a group of blocks takes from the next one too."""
    position = SAMPLES // 2 // (lanes * BLOCK) * lanes * BLOCK + batch * ranks
    for rank in range(0, ranks, 5):
        data = IndexedDataset(index)
        order = ShuffledOrder(SAMPLES, 3, BLOCK, lanes)
        loader = ElasticLoader(data, batch, order=order, rank=rank, ranks=ranks, collate_fn=list)
        loader.load_state_dict({**loader.state_dict(), "position": position})
        received = np.array([int(line) for line in next(iter(loader))])
        assert len(set((received // BLOCK).tolist())) <= most
        assert data.bytes_read == int(index.where(received)[2].sum()), "its own samples, and no others"


def test_a_first_batch_does_not_wait_for_the_orders_of_blocks(index, monkeypatch):
    """Nor for batches after it; what follows has them."""
    tables = []
    monkeypatch.setattr(
        BlockGroup, "__init__", lambda self, *how, real=BlockGroup.__init__: (tables.append(1), real(self, *how))[1]
    )
    loader = ElasticLoader(IndexedDataset(index), 64, order=ShuffledOrder(SAMPLES, 3, BLOCK), collate_fn=list)
    loader.load_state_dict({**loader.state_dict(), "position": 64 * 100})
    batches = iter(loader)
    first = next(batches)
    assert not tables
    following = next(batches)
    assert tables
    expected = ShuffledOrder(SAMPLES, 3, BLOCK).at(0, np.arange(6400, 6528))
    assert [int(line) for line in [*first, *following]] == expected.tolist()


def test_a_first_batch_imports_nothing_that_it_does_not_need(index):
    """numpy.ma, what speaks HTTP: each took longer than the batch."""
    program = f"""
import sys
from hyperpod_kit.data import IndexedDataset, SampleIndex, ShuffledOrder
data = IndexedDataset(SampleIndex.open({index.folder!r}))
order = ShuffledOrder(len(data), 3, {BLOCK})
data.__getitems__(order.at(0, __import__("numpy").arange({SAMPLES // 2}, {SAMPLES // 2} + 256)).tolist())
print([name for name in sys.modules if name in ("numpy.ma", "http.client") or "signing" in name])
"""
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout == b"[]\n"


@given(st.lists(st.integers(-(2**62), 2**62) | st.integers(0, 3), max_size=50))
def test_distinct_values_are_numpys(numbers):
    for found, numpys in zip(
        unique_with_counts(np.array(numbers, np.int64)),
        np.unique(np.array(numbers, np.int64), return_index=True, return_counts=True),
        strict=True,
    ):
        assert found.tolist() == numpys.tolist()
