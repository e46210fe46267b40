"""What a rank opens and reads to go on in the middle: its own samples, out of the blocks of its lanes alone."""

from __future__ import annotations

import numpy as np
import pytest

from hyperpod_kit.data import ElasticLoader, IndexedDataset, ShuffledOrder
from hyperpod_kit.data.index.build import build

SAMPLES, BLOCK = 60_000, 100


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    (place / "a.txt").write_text("".join(f"{n}\n" for n in range(SAMPLES)))
    return build([str(place)], str(place / "index")).index


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
