"""The loader under torch: it counts what was received, and its position is committed and restored with the weights."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.data import ElasticLoader, IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.errors import CheckpointError


@pytest.fixture
def numbers(tmp_path):
    """numbers(count) -> a data set of `count` numbers in three files."""

    def make(count=100):
        folder = tmp_path / "numbers"
        folder.mkdir(exist_ok=True)
        for part in range(3):
            lines = (json.dumps({"n": n}) + "\n" for n in range(count) if n * 3 // count == part)
            (folder / f"{part}.jsonl").write_text("".join(lines))
        return IndexedDataset(build_index([str(folder)]).index, transform=lambda sample: sample["n"])

    return make


def test_an_epoch_in_torchs_loader(numbers):
    loader = ElasticLoader(numbers(), 8)
    assert isinstance(loader, torch.utils.data.DataLoader) and len(loader) == 13
    found = []
    for batch in loader:
        found += batch.tolist()[: len(batch) - loader.fillers]
    assert Counter(found) == Counter(range(100)) and loader.epoch == 1


@pytest.mark.parametrize("workers", [0, 3])
def test_what_workers_have_fetched_is_not_counted(numbers, workers):
    loader = ElasticLoader(numbers(), 4, num_workers=workers)
    got = iter(loader)
    for count in range(1, 6):
        next(got)
        assert loader.position == 4 * count


def test_it_goes_on_with_other_ranks_and_workers(numbers):
    data, seen, state = numbers(103), Counter[Any](), None
    for ranks, workers, steps in ((1, 0, 3), (4, 1, 2), (3, 0, 5), (2, 2, 100)):
        loaders = [
            ElasticLoader(data, 3, rank=rank, ranks=ranks, num_workers=workers, last="pad") for rank in range(ranks)
        ]
        for loader in loaders:
            if state:
                loader.load_state_dict(state)
        for _, batches in zip(range(steps), zip(*loaders, strict=True), strict=False):
            for loader, batch in zip(loaders, batches, strict=True):
                seen.update(batch.tolist()[: 3 - loader.fillers])
            state = loaders[0].state_dict()
            assert all(loader.state_dict() == state for loader in loaders)
    assert seen == Counter(range(103))


def test_a_position_is_committed_and_restored_with_the_weights(numbers, tmp_path, monkeypatch):
    monkeypatch.setenv("HPK_SHM_DIR", str(tmp_path / "shm"))
    (tmp_path / "shm").mkdir()
    data, seen = numbers(60), []
    for first, last in ((0, 4), (4, 9), (9, 15)):
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1)
        loader = ElasticLoader(data, 4, num_workers=first % 2)
        with Manager(tmp_path / "root") as manager:
            state = State(model, loader=loader)
            assert manager.restore(state).next_step == first and loader.position == 4 * first
            batches = iter(loader)
            for _ in range(first, last):
                seen += next(batches).tolist()
            manager.save(last - 1, state, on_busy="wait")
            next(batches, None)  # what comes after the save is not in the checkpoint
    assert Counter(seen) == Counter(range(60))


def test_a_position_in_other_data_is_refused(numbers, tmp_path):
    state = ElasticLoader(numbers(50), 4, seed=1).state_dict()
    with pytest.raises(CheckpointError, match="seed: 1 then, 2 now"):
        ElasticLoader(numbers(50), 4, seed=2).load_state_dict(state)
    with pytest.raises(CheckpointError, match="samples: 50 then, 51 now"):
        ElasticLoader(numbers(51), 4, seed=1).load_state_dict(state)
    for wrong in ({}, {"format": state["format"], "position": -1}, {**state, "position": "7"}):
        with pytest.raises(CheckpointError, match="not a loader"):
            ElasticLoader(numbers(50), 4, seed=1).load_state_dict(wrong)


def test_epochs_are_gone_through_once(numbers):
    loader = ElasticLoader(numbers(20), 4, epochs=2)
    assert [len(list(loader)) for _ in range(3)] == [5, 5, 0]
    loader = ElasticLoader(numbers(20), 4)
    loader.set_epoch(0)
    got = iter(loader)
    next(got)
    loader.set_epoch(0)
    assert loader.position == 4
    loader.set_epoch(3)
    assert loader.position == 60
    with pytest.raises(ValueError, match=r"range\(loader.epoch, epochs\)"):
        loader.set_epoch(1)


def test_what_is_left_for_more_ranks_than_it_has_is_dropped(numbers):
    loader = ElasticLoader(numbers(10), 4, last="drop")
    got = iter(loader)
    next(got)
    state = loader.state_dict()
    more = ElasticLoader(numbers(10), 4, rank=0, ranks=2, last="drop")
    more.load_state_dict(state)
    assert (list(more), more.position) == ([], 10)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_draws_nothing_from_the_trainers_generator(numbers, workers):
    """What the trainer draws after a resume in mid-epoch is what it would have drawn."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    loader = ElasticLoader(numbers(40), 4, num_workers=workers)
    found = [torch.rand(1)]
    batches = iter(loader)
    next(batches)
    found.append(torch.rand(1))
    loader.load_state_dict(loader.state_dict())
    next(iter(loader))
    assert torch.equal(torch.cat([*found, torch.rand(1)]), expected)


def test_workers_of_one_start_have_seeds_of_their_own(numbers):
    """And other ones at another position, or on another rank."""
    data = numbers(48)
    data._transform = lambda sample: torch.initial_seed()
    seeds: Counter[Any] = Counter()
    for rank in range(2):
        loader = ElasticLoader(data, 4, rank=rank, ranks=2, num_workers=2, collate_fn=list)
        for _ in range(2):
            seeds.update(seed for batch in loader for seed in batch[:1])
    assert len(seeds) == 8
