"""An average of sharded weights that the program keeps in `extra`, as real processes over gloo."""

from __future__ import annotations

import os
from typing import Any

from tests.distributed import sharded_job


def build(kind: str) -> tuple[Any, Any, dict[str, Any]]:
    """(model, AdamW, the average: as each rank has it, divided where the model is)."""
    model, optimizer = sharded_job.build(kind)
    bare = model.module if kind == "ddp" else model
    return model, optimizer, {name: value.detach().clone() for name, value in bare.named_parameters()}


def step(model: Any, optimizer: Any, average: dict[str, Any], number: int) -> None:
    import torch

    sharded_job.step(model, optimizer, number)
    bare = model.module if hasattr(model, "module") else model
    with torch.no_grad():
        for name, value in bare.named_parameters():
            average[name].mul_(0.5).add_(value.detach(), alpha=0.5)


def numbers(average: dict[str, Any]) -> list[float]:
    whole = [
        value.full_tensor().detach() if hasattr(value, "full_tensor") else value.detach() for value in average.values()
    ]
    return [float(value.float().sum()) for value in whole]


def job(kind: str, root: str, do: str) -> dict[str, Any]:
    """`save`: two steps, commit, one step more. `restore`: from other weights, and that one step."""
    import torch

    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.errors import CheckpointError

    torch.manual_seed(0 if do == "save" else 99)
    model, optimizer, average = build(kind)
    extra = {"ema": average, "rank": int(os.environ["RANK"])}
    manager, state = Manager(root), State(model, optimizer, extra=extra)
    answer: dict[str, Any] = {"refused": ""}
    if do == "restore":
        # Without the average to fill, a divided tensor would come back in one rank's part: refused, on every rank.
        try:
            manager.restore(State(model, optimizer, extra={}))
        except CheckpointError as err:
            answer["refused"] = f"{err} | {err.hint}"
        # One rank whose tensor does not fit: none of them changes anything.
        wrong = {**average, "last.bias": torch.zeros(5)} if extra["rank"] == 0 else average
        before = numbers(dict(model.named_parameters()))
        try:
            manager.restore(State(model, optimizer, extra={**extra, "ema": wrong}))
        except CheckpointError as err:
            answer["misfit"] = str(err)
        answer["unchanged"] = before == numbers(dict(model.named_parameters()))
        answer["states"] = len(optimizer.state)
    manager.restore(state)
    if do == "save":
        for number in range(2):
            step(model, optimizer, average, number)
        assert manager.save(1, state, on_busy="wait").wait("durable", 60)
    answer["kept"] = extra["ema"] is average
    answer["rank"] = extra["rank"]
    step(model, optimizer, average, 2)
    answer["numbers"] = numbers(average)
    assert manager.close()
    return answer
