"""What is read of a checkpoint before there is a state, without a Manager, and without what no gradient changes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import CheckpointInfo, Manager, Restored, State, load_state
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.errors import CheckpointError, NoCheckpoint, NoValidCheckpoint
from tests.support.damage import flip
from tests.unit.checkpoint.agent_run import abandon


def net(value: float = 0.0) -> torch.nn.Sequential:
    made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    with torch.no_grad():
        for param in made.parameters():
            param.fill_(value)
    return made


def parameter(model: torch.nn.Module, name: str) -> torch.Tensor:
    return model.get_parameter(name).detach()


def said(step: int) -> dict[str, object]:
    return {"step": step, "words": ["ä", 1.5, b"x"], "tensor": torch.ones(2)}


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture
def saved(root: str) -> list[str]:
    """Steps 1, 2 and 3, whose weights are their number; the attempts, newest first."""
    with Manager(root) as manager:
        assert manager.inspect() is None
        for step in (1, 2, 3):
            handle = manager.save(step, State(net(step), extra=said(step), rng=False), metrics={"loss": step / 2})
            assert handle.wait("durable", 60), handle
    return [entry.checkpoint_id for entry in catalog.list_checkpoints(root)]


def newest_file(root: str, attempt: str, name: str) -> Path:
    (found,) = Path(root, attempt).glob(name)
    return found


def test_a_peek_says_what_is_beside_the_tensors(root: str, saved: list[str]) -> None:
    with Manager(root) as manager:
        found = manager.inspect()
        assert isinstance(found, CheckpointInfo) and (found.step, found.next_step, found.checkpoint_id) == (
            3,
            4,
            saved[0],
        )
        assert found.extra == {"step": 3, "words": ["ä", 1.5, b"x"], "tensor": None} and found.metrics == {"loss": 1.5}
        older = manager.inspect(saved[2])
        assert older is not None and older.extra["step"] == 1
        model, extra = net(), said(0)
        got = manager.restore(State(model, extra=extra, rng=False))
        assert isinstance(got, Restored) and got.checkpoint_id == found.checkpoint_id and extra["step"] == 3
        assert float(parameter(model, "0.weight")[0, 0]) == 3.0


def test_a_peek_does_not_cost_the_memory_tier(root: str) -> None:
    manager = Manager(root)
    assert manager.save(1, State(net(1), extra=said(1), rng=False)).wait("sealed", 60)
    abandon(manager)
    with Manager(root) as again:
        found = again.inspect()
        assert found is not None and found.extra["step"] == 1
        got = again.restore(State(net(), extra=said(0), rng=False))
        assert isinstance(got, Restored) and got.tier == "memory" and got.checkpoint_id == found.checkpoint_id


def test_a_damaged_tree_is_passed_over_and_damaged_tensors_are_found_by_the_restore(
    root: str, saved: list[str]
) -> None:
    path = newest_file(root, saved[0], "extra.json")
    flip(path, path.stat().st_size // 2)
    path = newest_file(root, saved[1], "shard-*")
    flip(path, path.stat().st_size // 2)
    with Manager(root) as manager:
        found = manager.inspect()
        assert found is not None and found.checkpoint_id == saved[1]
        assert [attempt for attempt, _ in found.rejected] == [saved[0]]
        got = manager.restore(State(net(), extra=said(0), rng=False))
        assert isinstance(got, Restored) and got.checkpoint_id == saved[2]


def test_weights_are_read_beside_a_run_that_goes_on(root: str, saved: list[str]) -> None:
    with Manager(root) as manager:
        manager.restore(State(net(), extra=said(0), rng=False))
        for attempt, value in ((None, 3.0), (saved[1], 2.0)):
            model = net()
            got = load_state(root, State(model, rng=False), checkpoint_id=attempt)
            assert float(parameter(model, "1.bias")[0]) == value and got.tier == "storage"
        assert manager.save(4, State(net(4), extra=said(4), rng=False)).wait("durable", 60)


def test_a_tensor_of_this_rank_alone_in_another_shape_is_the_states_fault(root: str, saved: list[str]) -> None:
    """It is in no plan: the shard's header says it, before anything is filled, and no older checkpoint is tried."""
    model = net()
    extra = {**said(0), "tensor": torch.ones(3)}
    with pytest.raises(CheckpointError, match=rf"{saved[0]} does not fit this state: .*extra\.tensor is F32 \[2\]"):
        load_state(root, State(model, extra=extra, rng=False))
    assert float(parameter(model, "0.weight")[0, 0]) == 0.0


def test_one_that_is_named_is_read_or_nothing(root: str, saved: list[str]) -> None:
    path = newest_file(root, saved[1], "shard-*")
    flip(path, path.stat().st_size // 2)
    with pytest.raises(NoValidCheckpoint, match=saved[1]):
        load_state(root, State(net(), rng=False), checkpoint_id=saved[1])
    with pytest.raises(CheckpointError, match="not a committed checkpoint"):
        load_state(root, State(net(), rng=False), checkpoint_id="seq-000099.step-0000000099.e1-abcdef")


def test_nothing_was_ever_committed(root: str) -> None:
    with pytest.raises(NoCheckpoint):
        load_state(root, State(net(), rng=False))
    assert not Path(root).exists()


def test_what_no_gradient_changes_is_left_out(root: str) -> None:
    def adapted(value: float) -> torch.nn.Sequential:
        made = net(value)
        made[0].requires_grad_(False)
        return made

    with Manager(root) as manager:
        assert manager.save(1, State(adapted(1), rng=False, frozen=False)).wait("durable", 60)
    model = adapted(7)
    load_state(root, State(model, rng=False, frozen=False))
    assert float(parameter(model, "0.weight")[0, 0]) == 7.0 and float(parameter(model, "1.weight")[0, 0]) == 1.0
    with pytest.raises(CheckpointError, match=r"missing in the checkpoint \['0.bias', '0.weight'\]"):
        load_state(root, State(adapted(7), rng=False))


def test_a_loop_that_saves_by_itself_hears_that_saves_come_to_nothing(root: str) -> None:
    manager = Manager(root)
    manager.restore(State(net(), rng=False))
    assert manager.reached(1)
    abandon(manager)
    assert not manager.reached(2)
    with pytest.raises(CheckpointError, match="no save can reach storage"):
        manager.save(2, State(net(), rng=False))
