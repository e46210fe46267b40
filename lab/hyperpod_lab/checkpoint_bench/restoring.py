"""A restore in a new process: from storage with an empty page cache, or from the memory of a killed trainer."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.handle import SaveState
from hyperpod_kit.environment import HPK_RESUME_MEMORY
from hyperpod_kit.storage.bench.replay.peers import Peers
from hyperpod_lab.checkpoint_bench import limits, machine
from hyperpod_lab.checkpoint_bench.trained_workload import TrainedWorkload


def leave_in_memory(work: TrainedWorkload, root: Path) -> dict[str, Any]:
    """Save once more and do not close: the caller is killed, and the capture stays with its agent."""
    manager = Manager(root)
    state = State(work.model, work.optimizer)
    manager.restore(state)
    work.change()
    handle = manager.save(1000, state)
    if not handle.wait(SaveState.SEALED, 60):
        raise RuntimeError(f"the save is {handle.state}: {handle.reason}")
    handle.wait(SaveState.DURABLE, 60)
    return {"digest": work.digest()}


def restore(
    peers: Peers, work: TrainedWorkload, root: Path, tier: str, threads: int, patience: machine.QuietWait
) -> dict[str, Any]:
    """One timed restore. Raises RuntimeError when it did not come from `tier`."""
    if tier == "storage":
        os.environ[HPK_RESUME_MEMORY] = "0"
    state = State(work.model, work.optimizer)
    begin = time.perf_counter()
    manager = Manager(root)
    start = peers.slowest(time.perf_counter() - begin)
    how = "not emptied"
    if tier == "storage" and peers.rank == 0:
        how = machine.empty_page_cache(shards(root))
    if peers.rank == 0:
        patience.wait_until_quiet()
    peers.barrier()
    begin = time.perf_counter()
    restored = manager.restore(state)
    spent = peers.slowest(time.perf_counter() - begin)
    if not isinstance(restored, Restored) or restored.tier != tier:
        raise RuntimeError(f"expected a restore from {tier}, got {restored}")
    result: dict[str, Any] = {"seconds": spent, "start": start, "page_cache": how, "digest": work.digest()}
    if tier == "storage":
        manager.close()
        return result
    floor = limits.MemoryFloor(work.tensors, threads)
    result["floor"] = {}
    for way in floor.ways:
        peers.barrier()
        result["floor"][way] = [peers.slowest(floor.seconds(way))]
    result["proof"] = {}
    for count in range(1, threads + 1):
        peers.barrier()
        result["proof"][str(count)] = [peers.slowest(floor.proof_seconds(count, manager.algorithm))]
    return result


def shards(root: Path) -> list[Path]:
    """The newest checkpoint's shard files."""
    newest = max(path.parent for path in root.rglob("*.safetensors"))
    return sorted(newest.glob("*.safetensors"))


def die() -> None:
    """As an out-of-memory kill would: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
