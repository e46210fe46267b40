"""What a State takes, what it refuses and when, and what it does when memory cannot be filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Reason, Verdict
from hyperpod_kit.checkpoint.transfer import load
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint, StateNotSerializable
from tests.unit.checkpoint import saved


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


def job(make: Any = torch.optim.AdamW, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """A model and its optimizer, one step old."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 3)
    optimizer = make(model.parameters(), lr=0.1, **options)
    if seed == 0:
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"extra": 5}, r"extra is a builtins\.int, expected a dict: extra=\{'value'"),
        ({"model": [torch.nn.Linear(1, 1)]}, r"model is a builtins\.list, .* State\(\.\.\., discriminator=\.\.\.\)"),
        ({"optimizer": [None]}, r"optimizer is a builtins\.list, .* State\(\.\.\., second=\.\.\.\)"),
        ({"best": 0.5}, r"best is a builtins\.float, .* extra=\{'best': \.\.\.\}"),
        (
            {"g": torch.Generator()},
            r"g is a torch\._C\.Generator, expected an object with state_dict and load_state_dict",
        ),
    ],
)
def test_what_is_of_no_kind_is_refused_at_the_construction(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        State(**wrong)


def test_what_cannot_be_held_is_refused_at_the_first_save_with_the_way_out(root: str) -> None:
    manager = Manager(root)
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(2))
    expanded = torch.nn.Linear(2, 2)
    expanded.register_buffer("e", torch.zeros(1, 4).expand(3, 4))
    with torch.device("meta"):
        meta = torch.nn.Linear(2, 2)
    endless: dict[str, Any] = {}
    endless["self"] = endless
    manager.restore(State())
    for state, message, hint in (
        (State(lazy), r"model\.0\.weight is a UninitializedParameter of a lazy module", "forward once"),
        (State(expanded), r"model\.e is a tensor of \[3, 4\] that was expanded", r"clone\(\)"),
        (State(meta), r"model\.weight .* on meta", r"to_empty\(device=\.\.\.\)"),
        (State(extra=endless), r"extra\.self is a dict that contains itself", "take .* out"),
    ):
        with pytest.raises(StateNotSerializable, match=message) as caught:
            manager.save(0, state)
        assert caught.value.hint and __import__("re").search(hint, caught.value.hint)
    # One that spans itself in dimensions of size 1 holds each item once.
    assert State(extra={"ids": torch.arange(3).expand(1, 3)}).tensors(Ranks(alone=True)).pieces
    assert manager.close()


def test_a_target_that_cannot_be_filled_is_no_verdict_on_the_checkpoint(root: str) -> None:
    model, optimizer = job()
    saved.save(root, State(model, optimizer, extra={"e": torch.ones(3, 4)}))
    for live, message in (
        (torch.zeros(1, 4).expand(3, 4), r"extra\.e is a tensor of \[3, 4\] that was expanded"),
        (torch.zeros(3, 4, device="meta"), r"extra\.e .* on meta"),
    ):
        with pytest.raises(CheckpointError, match=r"does not fit this state: state at .*" + message) as caught:
            saved.restore(root, State(*job(seed=1), extra={"e": live}))
        assert not isinstance(caught.value, NoValidCheckpoint)
    with torch.device("meta"):
        meta = torch.nn.Linear(4, 3)
    with pytest.raises(CheckpointError, match=r"model\.weight .* on meta") as caught:
        saved.restore(root, State(meta, torch.optim.AdamW(meta.parameters())))
    assert "to_empty" in str(caught.value.hint)
    lazy = torch.nn.LazyLinear(3)
    optimizer = torch.optim.AdamW(lazy.parameters())
    with pytest.raises(CheckpointError, match=r"model\.weight is a UninitializedParameter"):
        saved.restore(root, State(lazy, optimizer))


class Full(torch.Tensor):
    """Stands for a tensor on a device that has no memory left for a copy."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.copy_:
            raise torch.OutOfMemoryError("device out of memory")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_memory_that_runs_out_in_a_copy_ends_the_restore_and_condemns_nothing(root: str) -> None:
    saved.save(root, State(extra={"e": torch.ones(3, 4).t()}))
    state = State(extra={"e": torch.zeros(3, 4).t()})
    real = state.targets

    def on_a_full_device(ranks: Any, tree: Any) -> Any:
        from dataclasses import replace

        found = real(ranks, tree)
        return found._replace(
            pieces=tuple(
                replace(piece, tensor=piece.tensor.as_subclass(Full)) if piece.spec.name.endswith("extra.e") else piece
                for piece in found.pieces
            ),
        )

    state.targets = on_a_full_device  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match=r"does not fit this state: .*extra\.e could not be filled: OutOfMemory"):
        saved.restore(root, state)
    assert not list(Path(root).rglob("*omb*"))  # no tombstone
    saved.restore(root, State(extra={"e": torch.zeros(3, 4).t()}))
    for fault in (MemoryError(), load.TargetFault("x", ValueError())):
        found = reshard.error_as_reason(lambda fault=fault: (_ for _ in ()).throw(fault))  # type: ignore[misc]
        assert isinstance(found, Reason) and found.verdict is Verdict.UNFILLED


def test_what_the_checkpoint_does_not_have_is_named_with_what_it_has(root: str) -> None:
    model, optimizer = job()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    saved.save(root, State(model, schedule=schedule))
    other, fresh = job(seed=1)
    before = other.weight.detach().clone()
    for state, missing in (
        (State(other, fresh), "optimizer"),
        (State(other, ema=torch.nn.Linear(1, 1)), "objects.ema"),
        (State(other, scaler=torch.amp.GradScaler("cpu")), "objects.scaler"),
    ):
        with pytest.raises(CheckpointError, match=rf"has no {missing}; it has model, objects\.schedule") as caught:
            saved.restore(root, state)
        assert "leave out of State what was not saved" in str(caught.value.hint)
    assert torch.equal(other.weight, before)
    saved.restore(root, State(other))  # less than was saved is no error: the weights alone, for an evaluation
    assert torch.equal(other.weight, model.weight)
