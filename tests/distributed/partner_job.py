"""A sharded run whose ranks are nodes: each with a shared memory of its own, and copies in that of its partner."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.distributed import sharded_job


def node(folder: str, rank: int) -> Path:
    """The shared memory of that rank's node."""
    return Path(folder) / f"node-{rank}"


def _be_a_node(folder: str) -> None:
    own = node(folder, int(os.environ["RANK"]))
    own.mkdir(exist_ok=True)
    os.environ.update(HPK_SHM_DIR=str(own), HPK_AGENT_LINGER="120")


def die(folder: str, root: str, saves: int, stored: int) -> dict[str, Any]:
    """Save `saves` times to memory, the first `stored` of them to storage; then every rank and its agent are killed."""
    from hyperpod_kit.checkpoint import Manager, State

    _be_a_node(folder)
    model, optimizer = sharded_job.build("fsdp2")
    extra: dict[str, Any] = {}
    state = State(model, optimizer, extra=extra)
    manager = Manager(root, slots=3, partners=True)
    manager._agent.tries = 0
    manager.restore(state)
    for number in range(saves):
        sharded_job.step(model, optimizer, number)
        extra["rank and step"] = [int(os.environ["RANK"]), number]
        handle = manager.save(number, state, on_busy="wait", tier="storage" if number < stored else "memory")
        assert handle.wait(timeout=60), handle
    held = sharded_job.holds(model, optimizer)  # a collective: no agent ends before all have sealed
    os.kill(manager._agent.pid, signal.SIGKILL)
    manager._agent.wait_exit(10)
    return {"holds": held}


def come_back(folder: str, root: str) -> dict[str, Any]:
    """Restore into other weights, save once more to memory, and end normally."""
    import torch

    from hyperpod_kit.checkpoint import Manager, Restored, State

    _be_a_node(folder)
    torch.manual_seed(99)
    model, optimizer = sharded_job.build("fsdp2")
    extra: dict[str, Any] = {}
    state = State(model, optimizer, extra=extra)
    manager = Manager(root, slots=3, partners=True)
    got = manager.restore(state)
    answer = {
        "kind": type(got).__name__,
        "tier": getattr(got, "tier", ""),
        "step": got.step if isinstance(got, Restored) else -1,
        "extra": dict(extra),
        "holds": sharded_job.holds(model, optimizer),
    }
    sharded_job.step(model, optimizer, 7)
    assert manager.save(7, state, on_busy="wait", tier="memory").wait(timeout=60)
    assert manager.close()
    return answer
