"""What a program holds of `extra` is what a restore fills."""

from __future__ import annotations

import itertools
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Fresh, Manager, State
from hyperpod_kit.checkpoint.agent.shm import shm_paths
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint
from tests.support.rows import share
from tests.unit.checkpoint import saved
from tests.unit.checkpoint.agent_run import abandon
from tests.unit.checkpoint.test_manager import disown


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


def train(
    weights: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, average: dict[str, torch.Tensor]
) -> None:
    for number, weight in enumerate(weights):
        weight.grad = torch.full_like(weight, number + 1.0)
        average[str(number)].mul_(0.5).add_(weight.detach(), alpha=0.5)
    optimizer.step()


def masters() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer, dict[str, torch.Tensor]]:
    """fp32 master weights (the optimizer's own parameters) and an average of them, both kept in `extra` alone."""
    weights = [torch.nn.Parameter(torch.full((3,), 2.0)), torch.nn.Parameter(torch.full((2, 2), 3.0))]
    return weights, torch.optim.AdamW(weights, lr=0.1), {str(n): w.detach().clone() for n, w in enumerate(weights)}


def extra_of(weights: list[torch.nn.Parameter], average: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {"master": weights, "ema": {"of": average}}


def test_master_weights_and_an_average_that_the_program_holds_go_on_as_if_nothing_had_happened(root: str) -> None:
    weights, optimizer, average = masters()
    train(weights, optimizer, average)
    saved.save(root, State(None, optimizer, extra=extra_of(weights, average)))
    train(weights, optimizer, average)
    undisturbed = [*weights, *average.values()]

    weights, optimizer, average = masters()
    extra = extra_of(weights, average)
    saved.restore(root, State(None, optimizer, extra=extra))
    assert extra["master"] is weights and extra["ema"]["of"] is average and extra["master"][0] is weights[0]
    train(weights, optimizer, average)
    assert all(torch.equal(a, b) for a, b in zip([*weights, *average.values()], undisturbed, strict=True))
    # What is saved next is what the program holds.
    saved_again = State(extra=extra, rng=False)
    assert [piece.tensor.data_ptr() for piece in saved_again.tensors(Ranks(alone=True)).pieces[:2]] == [
        weight.data_ptr() for weight in weights
    ]


def test_containers_stay_keys_come_and_go_and_aliases_stay_aliases(root: str) -> None:
    one = torch.arange(4.0)
    saved.save(
        root,
        State(
            extra={
                "a": {"x": one, "n": 2, "new": [1, torch.ones(2)]},
                "alias": one,
                "log": [1, 2, 3],
                "pair": (torch.full((2,), 7.0), 5),
                "half": one.view(2, 2)[0],
                4: "key",  # type: ignore[dict-item]
            }
        ),
    )
    held: dict[str, Any] = {"x": torch.zeros(4), "n": 0, "gone": torch.ones(1)}
    log: list[int] = []
    first = torch.zeros(2)
    extra: dict[Any, Any] = {"a": held, "log": log, "pair": (first, 0), "half": torch.zeros(2), "old": OrderedDict()}
    saved.restore(root, State(extra=extra))
    assert list(extra) == ["a", "alias", "log", "pair", "half", 4]
    assert extra["a"] is held and list(held) == ["x", "n", "new"] and held["n"] == 2 and held["new"][0] == 1
    assert torch.equal(held["x"], one) and extra["alias"] is held["x"]
    assert extra["log"] is log and log == [1, 2, 3]
    assert extra["pair"][0] is first and first.tolist() == [7.0, 7.0] and extra["pair"][1] == 5


def test_an_alias_by_another_view_and_tensors_that_are_no_plain_memory_are_filled(root: str) -> None:
    one = torch.arange(6.0)
    saved.save(root, State(extra={"a": one, "b": one.detach(), "t": one.view(2, 3).t(), "c": torch.tensor([1 + 2j])}))
    live = torch.zeros(6)
    extra = {"a": live, "b": live.detach(), "t": torch.zeros(2, 3).t(), "c": torch.zeros(1, dtype=torch.cfloat).conj()}
    kept = dict(extra)
    saved.restore(root, State(extra=extra))
    assert all(extra[key] is kept[key] for key in kept)
    assert torch.equal(live, one) and torch.equal(extra["b"], one) and torch.equal(extra["t"], one.view(2, 3).t())
    assert extra["c"].resolve_conj().tolist() == [1 + 2j]


TENSOR = torch.ones(3)
MISFITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "shape": ({"e": {"w": TENSOR}}, {"e": {"w": torch.zeros(4)}}, r"extra\.e\.w is F32 \[3\] .*F32 \[4\] here"),
    "type": ({"e": [TENSOR]}, {"e": [torch.zeros(3).double()]}, r"extra\.e\.0 is F32 \[3\] .*F64 \[3\] here"),
    "number": ({"e": 5}, {"e": torch.zeros(3)}, r"extra\.e is not a tensor \('5'\) .*a tensor of \[3\] here"),
    "length": ({"e": [TENSOR, 1]}, {"e": [torch.zeros(3)]}, r"extra\.e is a list of 2 .*a list of 1 with a tensor"),
    "kind": ({"e": {"w": TENSOR}}, {"e": [torch.zeros(3)]}, r"extra\.e is a dict .*a list of 1 with a tensor .*e\.0"),
    "tensor": ({"e": TENSOR}, {"e": {"w": torch.zeros(3)}}, r"extra\.e is a tensor .*a dict with a tensor .*e\.w"),
    "untied": (
        {"a": TENSOR, "b": TENSOR},
        {"a": torch.zeros(3), "b": torch.zeros(3)},
        r"extra\.b is the same tensor as extra\.a in the checkpoint, another tensor here",
    ),
    "tied": (
        {"a": TENSOR, "b": torch.zeros(3)},
        dict.fromkeys("ab", torch.zeros(3)),
        r"extra\.b is a tensor of its own in the checkpoint, the same tensor as extra\.a here",
    ),
}


@pytest.mark.parametrize("case", share(MISFITS, 2))
def test_a_tensor_that_cannot_be_filled_is_refused_before_anything_changes(root: str, case: str) -> None:
    before, here, message = MISFITS[case]
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    saved.save(root, State(model, optimizer, extra=dict(before, n=1)))

    other = torch.nn.Linear(3, 3)
    weights = [p.detach().clone() for p in other.parameters()]
    fresh = torch.optim.AdamW(other.parameters())
    extra = dict(here, n=0)
    held = [tensor.clone() for tensor in here.values() if isinstance(tensor, torch.Tensor)]
    with pytest.raises(CheckpointError, match=message) as caught:
        saved.restore(root, State(other, fresh, extra=extra))
    assert not isinstance(caught.value, NoValidCheckpoint) and "before the restore" in str(caught.value.hint)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), weights, strict=True))
    assert not fresh.state  # and not the zeros, one step old, that were made to be filled
    assert extra["n"] == 0 and extra.keys() == {*here, "n"}
    assert all(
        torch.equal(a, b)
        for a, b in zip(held, [tensor for tensor in here.values() if isinstance(tensor, torch.Tensor)], strict=True)
    )

    for key in here:
        del extra[key]
    saved.restore(root, State(other, fresh, extra=extra))
    assert torch.equal(other.weight, model.weight) and extra["n"] == 1


def test_a_number_may_have_become_a_tensor(root: str) -> None:
    """As trainers keep a best loss: infinity to begin with, a tensor later."""
    saved.save(root, State(extra={"best": torch.tensor(0.25)}))
    extra: dict[str, Any] = {"best": float("inf")}
    saved.restore(root, State(extra=extra))
    assert torch.equal(extra["best"], torch.tensor(0.25))


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    """Each item draws a number, also when it is passed over."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> torch.Tensor:
        return number + torch.rand(4)


def losses(root: str, stop: int, save_at: int | None = None) -> list[float]:
    """As docs/checkpoints.md shows it: dropout, a shuffling loader, and the evaluation before the save."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Noisy(), shuffle=True, generator=torch.Generator().manual_seed(7))
    manager, state, seen = Manager(root), State(model, optimizer), []
    state.restore_rng()  # nothing was restored: nothing is changed
    got = manager.restore(state)
    first = got.next_step
    batches = iter(loader)
    for _ in range(first):
        next(batches)
    state.restore_rng()
    for step, batch in enumerate(itertools.islice(batches, stop - first), first):
        loss = model(batch).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        for _ in torch.utils.data.DataLoader([1, 2]):  # type: ignore[arg-type]
            pass  # an evaluation
        if step == save_at:
            assert manager.save(step, state).wait("durable", 60)
    assert manager.close()
    return seen


def test_a_run_goes_on_bit_for_bit_though_its_loader_has_drawn_after_the_restore(root: str) -> None:
    whole = losses(root, 9, save_at=4)
    assert losses(root, 9) == whole[5:]


def test_what_memory_half_filled_before_it_turned_out_bad_is_not_called_fresh(root: str) -> None:
    manager, state = Manager(root), State(extra={"big": torch.ones(96 << 20, dtype=torch.uint8)}, rng=False)
    manager.restore(state)
    handle = manager.save(0, state)
    assert handle.wait("durable", 60)
    abandon(manager)
    disown()
    # As if it had never been committed: no record of it stays either.
    shutil.rmtree(Path(root, str(handle.checkpoint_id)))
    for record in Path(root).iterdir():
        if record.name != "RUN.json":
            shutil.rmtree(record) if record.is_dir() else record.unlink()
    for path in Path(shm_paths.shared_memory_root()).glob("*.img"):
        if path.stat().st_blocks * 512 >= 96 << 20:  # the slot that was used; a byte of its last chunk
            with path.open("r+b") as file:
                file.seek(95 << 20)
                file.write(b"x")
    live = torch.zeros(96 << 20, dtype=torch.uint8)
    try:
        got = saved.restore(root, State(extra={"big": live}, rng=False))
    except CheckpointError as err:
        assert "after some tensors were filled" in str(err) and "HPK_RESUME_MEMORY=0" in str(err.hint)
    else:
        assert isinstance(got, Fresh) and "expected xxh3" in got.rejected[0][1] and not live.any()
