"""Weights of a sharded run into models that are divided otherwise, or not at all, in another type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy  # noqa: E402

from hyperpod_kit.checkpoint.commands import cli  # noqa: E402
from tests.distributed import sharded_job  # noqa: E402
from tests.support.damage import flip  # noqa: E402

pytestmark = pytest.mark.distributed


def save(root: str) -> dict[str, list[Any]]:
    from hyperpod_kit.checkpoint import Manager, State

    model, optimizer = sharded_job.build("fsdp2")
    state = State(model, optimizer)
    with Manager(root) as manager:
        manager.restore(state)
        for number in (1, 2):
            sharded_job.step(model, optimizer, number)
            if number == 1:
                held = weights(model)
            assert manager.save(number, state, on_busy="wait").wait("durable", 60)
    return held


def weights(model: Any) -> dict[str, list[Any]]:
    whole = {
        name: getattr(value, "full_tensor", lambda value=value: value)() for name, value in model.state_dict().items()
    }
    return {name: value.detach().double().flatten().tolist() for name, value in whole.items()}


def load(root: str, kind: str, converted: bool) -> tuple[int, int, list[str], dict[str, list[Any]]]:
    from hyperpod_kit.checkpoint import ConvertedFrom, load_weights

    torch.manual_seed(99)
    model, _ = sharded_job.build(kind)
    if kind == "plain":
        model = model.double()  # which loses nothing
    else:
        model.new = torch.nn.Linear(1, 1)
    names = (lambda name: ConvertedFrom((name,), torch.clone)) if converted else None
    got = load_weights(root, model, names=names, strict=kind == "plain")
    found = weights(model)
    return (
        got.step,
        len(got.rejected),
        list(got.missing),
        {name: it for name, it in found.items() if "new." not in name},
    )


def refused(root: str) -> str:
    """One rank's model lacks a tensor: all ranks hear of it."""
    from hyperpod_kit.checkpoint import load_weights
    from hyperpod_kit.errors import CheckpointError

    model, _ = sharded_job.build("plain")
    if torch.distributed.get_rank() == 1:
        del model.low
    with pytest.raises(CheckpointError, match="unexpected") as caught:
        load_weights(root, model)
    return caught.value.message


@pytest.mark.full
def test_into_other_divisions_and_types_after_damage(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    held = sharded_job.run(tmp_path, 2, save, root)[0]
    newest = max(Path(root).glob("seq-*"))
    flip(newest / "shard-00001.safetensors", 4096 + 8)
    for world, kind, converted in ((3, "fsdp2", False), (3, "fsdp2", True), (2, "plain", False)):
        for step, rejected, missing, found in sharded_job.run(tmp_path, world, load, root, kind, converted):
            assert (step, rejected) == (1, 1) and found == held
            assert missing == (["new.weight", "new.bias"] if kind == "fsdp2" else [])
    for name in ("first.weight", "tied.weight", "last.weight", "scale"):
        file = tmp_path / f"{name}.npy"
        assert cli.main(["get", root, f"model.{name}", "--out", str(file)]) == 0
        assert numpy.load(file).flatten().tolist() == held[name]
    first, second = sharded_job.run(tmp_path, 2, refused, root)
    assert first == second and "low.weight" in first
