"""What cannot be saved is refused by its name, on every rank, and nothing is committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.distributed import sharded_job  # noqa: E402

pytestmark = pytest.mark.distributed


def of_zero(root: str) -> str:
    """An optimizer of torch that divides its state and hands it out when it was gathered."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.errors import StateNotSerializable

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    with Manager(root) as manager, pytest.raises(StateNotSerializable) as caught:
        manager.restore(State(model, optimizer))
    return str(caught.value)


def test_state_that_torch_divides_by_itself(tmp_path: Path) -> None:
    for text in sharded_job.run(tmp_path, 2, of_zero, str(tmp_path / "root")):
        assert "ZeroRedundancyOptimizer" in text and "consolidate" in text and "FSDP2" in text


class LoaderOfOneRank:
    """Of rank 1 the state is one that no checkpoint can hold. It can be iterated, as loaders are."""

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def state_dict(self) -> dict[str, object]:
        value: object = 0
        if torch.distributed.get_rank() == 1:
            value = object()
        return {"value": value}

    def load_state_dict(self, state: dict[str, object]) -> None:
        pass


def of_loader(root: str) -> str:
    """A start from scratch with every tensor there."""
    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.errors import StateNotSerializable

    with Manager(root) as manager, pytest.raises(StateNotSerializable) as caught:
        manager.restore(State(torch.nn.Linear(2, 2), loader=LoaderOfOneRank()))
    return str(caught.value)


def test_a_loader_of_one_rank(tmp_path: Path) -> None:
    for text in sharded_job.run(tmp_path, 2, of_loader, str(tmp_path / "root")):
        assert "objects.loader.value" in text
