"""Weights out of a checkpoint that does not fit the model. Sharded models and several ranks: tests/distributed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, State, load_weights  # noqa: E402
from hyperpod_kit.checkpoint.repository import catalog  # noqa: E402
from hyperpod_kit.errors import CheckpointError, NoCheckpoint, NoValidCheckpoint  # noqa: E402
from tests.support.damage import flip  # noqa: E402


def net(classes: int = 2, *, tied: bool = True) -> Any:
    made = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), torch.nn.Linear(4, classes)
    )
    if tied:
        made[2].weight = made[0].weight
    return made


def saved(root: Path, *, saves: int = 1) -> Any:
    torch.manual_seed(1)
    model = net()
    ema = torch.optim.swa_utils.AveragedModel(model)
    state = State(model, torch.optim.AdamW(model.parameters()), ema=ema)
    with Manager(root) as manager:
        manager.restore(state)
        for step in range(1, saves + 1):
            with torch.no_grad():
                model[0].weight.fill_(step)
                ema.module[0].bias.fill_(-step)
            assert manager.save(step, state, on_busy="wait").wait("durable", 60)
    return model


def bytes_of(model: Any) -> list[bytes]:
    return [value.float().numpy().tobytes() for value in model.state_dict().values()]


def test_all_of_it_in_another_type_and_untied(shm: Path, tmp_path: Path) -> None:
    model = saved(tmp_path)
    got = load_weights(tmp_path, same := net())
    assert bytes_of(same) == bytes_of(model) and got.step == 1 and len(got.loaded) == len(model.state_dict())
    low = net(tied=False).bfloat16()
    load_weights(tmp_path, low)
    assert bytes_of(low) == bytes_of(model.bfloat16()) and low[1].num_batches_tracked.dtype == torch.int64
    # Wrappers put prefixes into names; a compiled model is not compiled for this.
    load_weights(tmp_path, torch.compile(other := net()))
    assert bytes_of(other) == bytes_of(same)


def test_what_does_not_fit_is_named_before_anything_is_changed(shm: Path, tmp_path: Path) -> None:
    model = saved(tmp_path)
    torch.manual_seed(2)
    other = net(classes=7)
    other.append(torch.nn.Linear(7, 1))
    before = bytes_of(other)
    with pytest.raises(CheckpointError, match=r"missing in the checkpoint \['4.weight', '4.bias'\], of another shape"):
        load_weights(tmp_path, other)
    assert bytes_of(other) == before
    got = load_weights(tmp_path, other, strict=False)
    assert got.missing == ("4.weight", "4.bias") and got.other == ("3.weight", "3.bias") and got.unexpected == ()
    assert torch.equal(other[0].weight, model[0].weight) and torch.equal(other[2].bias, model[2].bias)
    assert bytes_of(other)[-4:] == before[-4:]
    fewer = net()[:2]
    with pytest.raises(CheckpointError, match=r"unexpected \['2.bias', '2.weight', '3.bias', '3.weight'\]"):
        load_weights(tmp_path, fewer)
    assert len(load_weights(tmp_path, fewer, strict=False).loaded) == 7
    # A number of another kind is no number of another precision.
    steps = net()
    steps[1].num_batches_tracked = torch.tensor(0.5)
    assert load_weights(tmp_path, steps, strict=False).other == ("1.num_batches_tracked",)


def test_other_names_and_the_average_of_the_weights(shm: Path, tmp_path: Path) -> None:
    saved(tmp_path)
    body = torch.nn.Module()
    body.encoder = net()
    body.new = torch.nn.Linear(1, 1)

    def names(name: str) -> str | None:
        return name.removeprefix("encoder.") if name.startswith("encoder.") else None

    got = load_weights(tmp_path, body, names=names)
    assert "encoder.0.weight" in got.loaded and "new.weight" not in (*got.loaded, *got.missing)
    averaged = net(tied=False)
    load_weights(tmp_path, averaged, inside="objects.ema", names=lambda name: f"module.{name}", strict=False)
    assert averaged[0].bias.tolist() == [-1.0] * 4
    with pytest.raises(
        CheckpointError, match=r"no tensors in 'objects\.other'; at its top it has classes, extra, model"
    ):
        load_weights(tmp_path, averaged, inside="objects.other")


def test_a_flipped_bit_walks_back_and_a_named_attempt_does_not(shm: Path, tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint):
        load_weights(tmp_path / "none", net())
    saved(tmp_path, saves=2)
    newest, older = (entry.attempt for entry in catalog.attempts(tmp_path))
    flip(tmp_path / newest / "shard-00000.safetensors", 4096 + 8)
    got = load_weights(tmp_path, model := net())
    assert (got.step, got.attempt) == (1, older) and model[0].weight.unique().tolist() == [1.0]
    assert [name for name, _ in got.rejected] == [newest] and "bytes" in got.rejected[0][1]
    with pytest.raises(NoValidCheckpoint):
        load_weights(tmp_path, net(), attempt=newest)
    flip(tmp_path / older / "extra.json", 10)
    with pytest.raises(NoValidCheckpoint, match="extra"):
        load_weights(tmp_path, net())
