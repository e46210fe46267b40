"""What others iterate over, kept by State(loader=…) with the weights: HF data sets, torchdata's StatefulDataLoader."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.data import ElasticLoader
from tests.support.rows import full

datasets = pytest.importorskip("datasets")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

COUNT = 96

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Four files of 24 numbered rows."""
    monkeypatch.setenv("HPK_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    (tmp_path / "shm").mkdir()
    for part in range(4):
        rows = (json.dumps({"n": part * 24 + n}) + "\n" for n in range(24))
        (tmp_path / f"{part}.jsonl").write_text("".join(rows))
    return [str(tmp_path / f"{part}.jsonl") for part in range(4)]


def stream(files):
    return datasets.load_dataset("json", data_files=files, split="train", streaming=True)


def table(files):
    return datasets.load_dataset("json", data_files=files, split="train")


def numbers(batches):
    return [n for batch in batches for n in batch["n"].tolist()]


def in_pieces(root, make, pieces):
    """The numbers that a run receives that is stopped after so many batches each, with a new loader at each start."""
    seen = []
    for start, piece in enumerate([*pieces, None]):
        loader = make()
        with Manager(root) as manager:
            state = State(torch.nn.Linear(1, 1), loader=loader)
            step = manager.restore(state).next_step
            assert (step > 0) == (start > 0)
            for batch in loader:
                seen += batch["n"].tolist()
                step += 1
                if piece is not None:
                    piece -= 1
                    if piece == 0:
                        manager.save(step - 1, state, on_busy="wait")
                        break
    return seen


@pytest.mark.full
@pytest.mark.parametrize("workers", [2, *full(0)])
def test_torchdatas_loader_over_an_hf_stream(files, tmp_path, workers):
    """Three starts in an epoch; its workers' places are in the checkpoint."""

    def make():
        return stateful.StatefulDataLoader(stream(files), batch_size=4, num_workers=workers)

    assert in_pieces(tmp_path / "root", make, [3, 5, 7]) == numbers(make())


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, *full(2)])
def test_torchdatas_loader_over_a_shuffled_map_style_data_set(files, tmp_path, workers):
    data = table(files).with_format("torch")

    def make():
        torch.manual_seed(3)
        return stateful.StatefulDataLoader(data, batch_size=4, shuffle=True, num_workers=workers)

    found = in_pieces(tmp_path / "root", make, [3, 5, 7])
    assert sorted(found) == list(range(COUNT)) and found == numbers(make())


@pytest.mark.full
def test_an_hf_stream_by_itself(files, tmp_path):
    """Without workers its own state is exact; State(loader=…) takes it as it is."""

    def make():
        return stream(files).batch(4).with_format("torch")

    assert in_pieces(tmp_path / "root", make, [3, 5, 7]) == list(range(COUNT))


@pytest.mark.full
def test_a_shuffled_hf_stream_loses_its_buffer(files, tmp_path):
    """What docs/data.md says of it: if this fails, the page is to be changed."""

    def make():
        return stream(files).shuffle(seed=1, buffer_size=16).batch(4).with_format("torch")

    found = Counter(in_pieces(tmp_path / "root", make, [3, 5, 7]))
    assert len(found) < COUNT


@pytest.mark.parametrize("workers", [2, *full(0)])
def test_an_hf_table_in_our_loader(files, tmp_path, workers):
    """Shuffled, and on another number of ranks and workers after each start."""
    data, root, seen = table(files).with_format("torch"), tmp_path / "root", Counter[Any]()
    for start, (ranks, steps) in enumerate([(1, 5), (4, 2), (3, 100)]):
        with Manager(root) as manager:
            of_rank = [
                ElasticLoader(data, 12 // ranks, rank=rank, ranks=ranks, num_workers=(workers + start) % 3)
                for rank in range(ranks)
            ]
            state = State(torch.nn.Linear(1, 1), loader=of_rank[0])
            manager.restore(state)
            for loader in of_rank[1:]:
                loader.load_state_dict(of_rank[0].state_dict())
            for loader in of_rank:
                for _, batch in zip(range(steps), loader, strict=False):
                    seen.update(batch["n"].tolist())
                    loader.trained()
            assert len({loader.position for loader in of_rank}) == 1
            manager.save(start, state, on_busy="wait")
    assert seen == Counter(range(COUNT))
