"""File after file: every sample once, one file at a time, in another order each epoch."""

from __future__ import annotations

import numpy as np
import pytest

from hyperpod_kit.data import ElasticLoader, FileOrder, IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.errors import CheckpointError


@pytest.fixture
def data(tmp_path):
    """Files of 7, 0, 1 and 30 samples: "FILE-NUMBER"."""
    for name, count in (("a", 7), ("b", 0), ("c", 1), ("d", 30)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}-{n}\n" for n in range(count)))
    return IndexedDataset(build_index([str(tmp_path)]).index)


@pytest.mark.parametrize("seed", [0, 7, None])
def test_one_file_after_the_other(data, seed):
    order, orders = FileOrder(data.index, seed), set()
    for epoch in range(4):
        found = [data[n] for n in order.at(epoch, np.arange(38)).tolist()]
        assert sorted(found) == sorted(data.__getitems__(range(38)))
        files = [name[0] for name in found]
        assert sum(one != other for one, other in zip(files, files[1:], strict=False)) == 2
        paths = [data.index.file(order.file_at(epoch * 38 + n)).path for n in range(38)]
        assert [path[-5] for path in paths] == files
        orders.add(tuple(found))
    assert len(orders) == (1 if seed is None else 4)


def test_it_goes_on_in_the_middle_of_a_file_on_other_ranks(data):
    loader = ElasticLoader(data, 4, order=FileOrder(data.index), collate_fn=list)
    batches = iter(loader)
    seen = [*next(batches), *next(batches), *next(batches)]
    for rank in range(2):
        other = ElasticLoader(data, 2, order=FileOrder(data.index), rank=rank, ranks=2, collate_fn=list)
        other.load_state_dict(loader.state_dict())
        for batch in other:
            seen += batch[: 2 - other.fillers]
    assert sorted(seen) == sorted(data.__getitems__(range(38)))
    with pytest.raises(CheckpointError, match="seed: 0 then, 1 now"):
        ElasticLoader(data, 4, order=FileOrder(data.index, 1)).load_state_dict(loader.state_dict())
