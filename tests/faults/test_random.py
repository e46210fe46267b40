"""Faults drawn at random, one after the other, on one job: it ends with the weights of a run that nobody disturbed.

HPK_FAULT_COUNT faults (100) from seed HPK_FAULT_SEED (1). Every tenth one is a warning, so that the failures in a row
stay below what `job run` bears.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Callable, Dict

import pytest

from .job import Job
from .site import Site
from .test_checkpoints import flip

COUNT = int(os.environ.get("HPK_FAULT_COUNT", "100"))
SEED = int(os.environ.get("HPK_FAULT_SEED", "1"))
STEPS = 20 * COUNT
WEIGHTS = {"exit": 45, "kill": 40, "hang": 3, "slurmstepd": 3, "corrupt": 5, "controller": 4}


def exits(job: Job, rank: int) -> None:
    job.send(signal.SIGUSR2, rank=rank)


def kill(job: Job, rank: int) -> None:
    job.send(signal.SIGKILL, rank=rank)


def hang(job: Job, rank: int) -> None:
    job.send(signal.SIGSTOP, rank=rank)


def slurmstepd(job: Job, rank: int) -> None:
    job.send(signal.SIGKILL, "step", rank=rank)


def corrupt(job: Job, rank: int) -> None:
    job.send(signal.SIGSTOP, rank=0)
    flip(job.checkpoints()[-1] / f"shard-0000{rank}.safetensors")
    job.send(signal.SIGKILL, rank=0)


def controller(job: Job, rank: int) -> None:
    job.site.kill_controller()
    job.send(signal.SIGKILL, rank=rank)
    time.sleep(2)
    job.site.start_controller()


def warn(job: Job, rank: int) -> None:
    job.site.slurm("scancel", "--batch", "--signal=USR1", job.id)


FAULTS: Dict[str, Callable[[Job, int], None]] = {
    "exit": exits, "kill": kill, "hang": hang, "slurmstepd": slurmstepd, "corrupt": corrupt,
    "controller": controller, "warn": warn}


@pytest.mark.timeout(1800)
def test_faults_at_random(job: Job, site: Site, row: Callable[..., None]) -> None:
    draw = random.Random(SEED)
    job.submit("--steps", str(STEPS), "--pause", "0.1", options="--stall 4")
    began = time.time()
    for number in range(COUNT):
        name = "warn" if number % 10 == 9 else draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        rank = draw.randrange(2)
        job.running()
        before = job.attempt()
        FAULTS[name](job, rank)
        job._wait(f"an attempt after fault {number}, {name} of rank {rank},",
                  lambda was=before: job.attempt() != was, 90)
    spent = time.time() - began
    job.ended_well(STEPS, timeout=300)
    row(f"{COUNT} faults drawn at random (seed {SEED})", "ends with bit-identical weights", spent / COUNT,
        "mean of a fault and its recovery")
