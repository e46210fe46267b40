"""One rank of a bench run, in a process of its own: do one phase, leave its result in a file."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST = 3
"""Samples of a figure, whatever the time."""


@dataclass(frozen=True)
class Job:
    """What one rank is to do. `threads`: cores of this rank; `patience`: seconds that it may wait for a quiet machine;
    `deadline`: the time.monotonic() after which LEAST samples are enough, the same clock in all processes of a
    machine; `tag` names the files of this start. A result says what is left of the patience."""

    phase: str  # save, train, leave, cold or hot
    size: str
    mode: str
    rank: int
    world: int
    threads: int
    repeat: int
    deadline: float
    patience: float
    directory: str
    tag: str

    def enough(self, taken: int, slowest: Callable[[float], float]) -> bool:
        """Whether `taken` samples are. All ranks ask together, `slowest` being the largest of what they say."""
        return taken >= self.repeat or (taken >= LEAST and slowest(time.monotonic()) > self.deadline)

    @property
    def result(self) -> Path:
        return Path(self.directory) / f"{self.tag}-{self.rank}.json"

    @property
    def log(self) -> Path:
        return Path(self.directory) / f"{self.tag}-{self.rank}.log"


def run(job: Job) -> None:
    """Never raises: an error is in the result."""
    out = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    warnings.simplefilter("ignore")
    try:
        result = _work(job)
    except BaseException as err:
        traceback.print_exc()
        result = {"error": f"{type(err).__name__}: {err}"}
    sys.stderr.flush()
    partial = job.result.with_suffix(".part")
    partial.write_text(json.dumps(result))
    partial.rename(job.result)
    if job.phase in ("leave", "hot"):
        from hyperpod_kit.checkpoint.bench import restoring

        restoring.die()
    os._exit(0 if "error" not in result else 1)


def _work(job: Job) -> dict[str, Any]:
    import torch

    from hyperpod_kit.checkpoint.bench import restoring, saving, training
    from hyperpod_kit.checkpoint.bench.machine import Patience
    from hyperpod_kit.checkpoint.bench.peers import Peers
    from hyperpod_kit.checkpoint.bench.workload import Workload

    torch.set_num_threads(job.threads)
    directory = Path(job.directory)
    patience = Patience(job.patience)
    peers = Peers(job.rank, job.world, directory / f"{job.tag}-meeting")
    work = Workload(
        job.size, job.mode, peers, seed=1 if job.phase != "leave" else 2, zeros=job.phase in ("cold", "hot")
    )
    root = directory / "root"
    if job.phase == "save":
        result = saving.Saving(peers, work, directory, job, patience).run()
    elif job.phase == "train":
        result = training.measure(peers, work, directory, job)
    elif job.phase == "leave":
        result = restoring.leave_in_memory(work, root)
    else:
        tier = "storage" if job.phase == "cold" else "memory"
        result = restoring.restore(peers, work, root, tier, job.threads, patience)
    if job.phase == "save":
        result["digest"] = work.digest()
    peers.barrier()
    result["patience"] = patience.left
    return result
