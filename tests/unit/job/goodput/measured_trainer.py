"""A rank that writes down what it spends its time on, by its own watch: nothing of it comes from the time ledger.

    measured_trainer.py STAMPS

A step is 0.3 s of "compute", a save every 10 steps; some seconds of start-up, and a first step that compiles. Rank 1
kills itself once in step 29, and rank 0 hangs once in step 49. STAMPS.<rank> gets a JSON line for each thing done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional

from tests.unit.job.goodput.process_start import started

STEPS, EVERY, STEP = 60, 10, 0.3
BUILDING, COMPILING = 8.0, 1.0
KILLED_IN, HANGS_IN = 29, 49


class Stamps:
    def __init__(self, path: str, attempt: str) -> None:
        self._attempt = attempt
        self._path = path

    def write(self, what: str, start: float, end: float, step: Optional[int] = None) -> None:
        row = {"attempt": self._attempt, "what": what, "start": start, "end": end, "step": step}
        with open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")

    @contextmanager
    def of(self, what: str, step: Optional[int] = None) -> Iterator[None]:
        start = time.time()
        yield
        self.write(what, start, time.time(), step)


def is_first(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def main() -> None:
    import torch
    import torch.distributed as dist

    from hyperpod_kit.checkpoint import Manager, State

    mark, env, root = sys.argv[1], os.environ, Path(os.environ["HPK_CHECKPOINT_ROOT"])
    rank, ranks, attempt = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), env["HPK_ATTEMPT"]
    stamps = Stamps(f"{mark}.{rank}", attempt)
    dist.init_process_group("gloo", init_method=f"file://{mark}.meeting-{attempt}", rank=rank, world_size=ranks)
    time.sleep(BUILDING)
    torch.manual_seed(1)
    model = torch.nn.Linear(1500, 1500)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 1500)).sum().backward()
    optimizer.step()
    manager = Manager(root)
    state = State(model, optimizer)
    stamps.write("start-up", started(os.getpid()), time.time())
    with stamps.of("restore"):
        first = manager.restore(state).next_step
    for step in range(first, STEPS):
        if step == first:
            with stamps.of("first step"):
                time.sleep(COMPILING)
        with stamps.of("step", step):
            time.sleep(STEP)
            if step == KILLED_IN and rank == 1 and is_first(f"{mark}.killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            if step == HANGS_IN and rank == 0 and is_first(f"{mark}.hangs"):
                signal.pause()
            dist.barrier()
        if step % EVERY == EVERY - 1:
            with stamps.of("save", step):
                manager.save(step, state)
        else:
            manager.reached(step)
    with stamps.of("close"):
        manager.close()


if __name__ == "__main__":
    main()
