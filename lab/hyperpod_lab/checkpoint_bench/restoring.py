"""A restore in a new process: from storage with an empty page cache, or from the memory of a killed trainer."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.environment import HPK_RESUME_MEMORY
from hyperpod_kit.storage.bench.replay.peers import Peers
from hyperpod_lab.checkpoint_bench import limits, machine
from hyperpod_lab.checkpoint_bench.trained_workload import TrainedWorkload


def save_and_leave_in_memory(work: TrainedWorkload, root: Path) -> dict[str, Any]:
    """Save once more and do not close: the caller is killed, and the capture stays with its agent. Return the
    digest."""
    manager = Manager(root)
    state = State(work.model, work.optimizer)
    manager.restore(state)
    work.update_all_values()
    handle = manager.save(1000, state)
    if not handle.wait(SaveState.SEALED, 60):
        raise RuntimeError(f"the save is {handle.state}: {handle.reason}")
    handle.wait(SaveState.DURABLE, 60)
    return {"digest": work.digest()}


def measure_restore(
    peers: Peers, work: TrainedWorkload, root: Path, tier: str, threads: int, patience: machine.QuietWait
) -> dict[str, Any]:
    """Restore once and return the seconds, the digest of what was restored and, from memory, samples of the
    limits.

    Raises RuntimeError when it did not come from `tier`.
    """
    if tier == "storage":
        os.environ[HPK_RESUME_MEMORY] = "0"
    state = State(work.model, work.optimizer)
    begin = time.perf_counter()
    manager = Manager(root)
    start = peers.max_over_ranks(time.perf_counter() - begin)
    how = "not emptied"
    if tier == "storage" and peers.rank == 0:
        how = machine.empty_page_cache_and_name_method(newest_shard_files(root))
    if peers.rank == 0:
        patience.wait_until_quiet()
    peers.barrier()
    begin = time.perf_counter()
    restored = manager.restore(state)
    spent = peers.max_over_ranks(time.perf_counter() - begin)
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
        result["floor"][way] = [peers.max_over_ranks(floor.time_copy(way))]
    result["proof"] = {}
    for count in range(1, threads + 1):
        peers.barrier()
        result["proof"][str(count)] = [peers.max_over_ranks(floor.time_digest_and_copy(count, manager.algorithm))]
    return result


def newest_shard_files(root: Path) -> list[Path]:
    """Return the shard files of the newest checkpoint."""
    newest = max(path.parent for path in root.rglob("*.safetensors"))
    return sorted(newest.glob("*.safetensors"))


def kill_self() -> None:
    """Kill this process with SIGKILL, as for want of memory: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
