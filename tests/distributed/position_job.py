"""Loaders on several ranks and the positions that a checkpoint has of them, as real processes over gloo."""

from __future__ import annotations

import os
from typing import Any

from hyperpod_kit.checkpoint import Restored


class WrongLoader:
    """Saves what it is given as the state of a loader."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("not restored in this test")


def job(index: str, root: str) -> dict[str, Any]:
    """Three checkpoints: a good one at 24, one whose ranks are not at one place, one whose rank 1 is at none."""
    import torch

    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex
    from hyperpod_kit.errors import CheckpointError

    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)

    def loader(seed: int = 1) -> ElasticLoader:
        return ElasticLoader(IndexedDataset(SampleIndex.open(index)), 4, seed=seed, collate_fn=list)

    good = loader()
    manager = Manager(root)
    manager.restore(State(model, loader=good))
    for _, _ in zip(range(3), good):
        good.trained()
    good_state = good.state_dict()
    for step, state in enumerate(
        (
            good_state,
            {**good_state, "position": 32 + 8 * rank},
            {**good_state, "position": "here"} if rank else good_state,
        )
    ):
        with torch.no_grad():
            model.weight.fill_(step)
        assert manager.save(step, State(model, loader=WrongLoader(state)), on_busy="wait").wait("durable", 60)
    assert manager.close()

    model, found = torch.nn.Linear(2, 2), loader()
    manager = Manager(root)
    before = model.weight.detach().clone()
    try:
        manager.restore(State(model, loader=loader(seed=2)))
        refused = ""
    except CheckpointError as err:
        refused = f"{err} | {err.hint}"
    untouched = bool(torch.equal(model.weight, before))
    got = manager.restore(State(model, loader=found))
    assert manager.close() and isinstance(got, Restored)
    return {
        "step": got.step,
        "rejected": [why for _, why in got.rejected],
        "position": found.position,
        "weight": float(model.weight[0, 0]),
        "refused": refused,
        "untouched": untouched,
    }
