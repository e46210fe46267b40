"""A sharded run that saves on all tiers and dies, leaving each rank's memory and local disk to be taken away."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.distributed import sharded_job


def die(kind: str, root: str, local: str | None, saves: int, committed: int) -> dict[str, str]:
    """Save at steps 0, 1, ..; the first `committed` reach the root, the last is sealed. What was saved last."""
    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.errors import CheckpointError

    first = os.environ["RANK"] == "0"
    if first and committed < saves:
        os.environ["HPK_FAILPOINT"] = f"agent.before_commit@{committed + 1}"
    model, optimizer = sharded_job.build(kind)
    extra: dict[str, Any] = {}
    state = State(model, optimizer, extra=extra)
    manager = Manager(root, local=local)
    manager._agent.tries = 0  # an agent that dies stays away, as with its node
    manager.restore(state)
    for number in range(saves):
        sharded_job.step(model, optimizer, number)
        extra["rank and step"] = [int(os.environ["RANK"]), number]
        try:
            handle = manager.save(number, state, on_busy="wait")
        except CheckpointError:  # the agent was dead before the save came back
            assert first and number == committed
            continue
        if number < committed:
            assert handle.wait("durable", 60), handle.reason
    if first and committed < saves:
        # It dies about to commit: every rank has sealed and written by then.
        manager._agent.wait_exit(20)
        assert not manager._agent.ended_cleanly
    held = sharded_job.holds(model, optimizer)  # a collective: no other agent ends before
    if not first or committed == saves:
        os.kill(manager._agent.pid, signal.SIGKILL)
        manager._agent.wait_exit(10)
    return held


def come_back(kind: str, root: str, local: str | None, memory: bool = True) -> dict[str, Any]:
    """Restore into other weights, and end normally after one more save."""
    import torch

    from hyperpod_kit.checkpoint import Manager, Restored, State

    os.environ["HPK_RESUME_MEMORY"] = "1" if memory else "0"
    torch.manual_seed(99)
    model, optimizer = sharded_job.build(kind)
    extra: dict[str, Any] = {}
    state = State(model, optimizer, extra=extra)
    manager = Manager(root, local=local)
    got = manager.restore(state)
    answer = {
        "kind": type(got).__name__,
        "tier": getattr(got, "tier", ""),
        "rejected": got.rejected,
        "step": got.step if isinstance(got, Restored) else -1,
        "extra": dict(extra),
        "holds": sharded_job.holds(model, optimizer),
    }
    sharded_job.step(model, optimizer, 7)
    assert manager.save(7, state, on_busy="wait").wait("durable", 60)
    assert manager.close()
    return answer


def take_memory(folder: Path, rank: int) -> None:
    """As after the node of that rank was replaced."""
    for path in (folder / "shm").glob(f"hpk-*-{rank:05d}-*"):
        path.unlink()


def take_disk(local: Path, rank: int) -> None:
    for path in local.glob(f"hpk-*/*/*-{rank:05d}.*"):
        path.unlink()
