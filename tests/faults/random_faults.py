"""Faults to draw from, and the list that a seed gives."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, cast

from tests.faults.job import Job
from tests.faults.machines import MachineSite
from tests.faults.profiles import PROFILE
from tests.faults.site import Site


def exits(job: Job, rank: int) -> None:
    job.send(signal.SIGUSR2, rank=rank)


def kill(job: Job, rank: int) -> None:
    job.send(signal.SIGKILL, rank=rank)


def hang(job: Job, rank: int) -> None:
    job.send(signal.SIGSTOP, rank=rank)


def slurmstepd(job: Job, rank: int) -> None:
    job.send(signal.SIGKILL, "step", rank=rank)


def corrupt(job: Job, rank: int) -> None:
    """The newest checkpoint, then a crash."""
    job.send(signal.SIGSTOP, rank=0)
    job.flip(f"shard-0000{rank}.safetensors")
    job.send(signal.SIGKILL, rank=0)


def controller(job: Job, rank: int) -> None:
    """slurmctld is away for 2 s while a rank dies."""
    job.site.kill_controller()
    job.send(signal.SIGKILL, rank=rank)
    time.sleep(2)
    job.site.start_controller()


def warn(job: Job, rank: int) -> None:
    job.site.slurm("scancel", "--batch", "--signal=USR1", job.id)


def machine(job: Job, rank: int) -> None:
    """The machine of a rank: of rank 0 it is the batch host."""
    cast(MachineSite, job.site).kill_machine(job.node_of(rank))


def mount(job: Job, rank: int) -> None:
    """The mount's daemon of a rank's node: the node repairs it."""
    cast(MachineSite, job.site).break_mount(job.node_of(rank), "kill-daemon")


FAULTS: Dict[str, Callable[[Job, int], None]] = {
    "exit": exits,
    "kill": kill,
    "hang": hang,
    "slurmstepd": slurmstepd,
    "corrupt": corrupt,
    "controller": controller,
    "warn": warn,
    "machine": machine,
    "mount": mount,
}

WEIGHTS = {
    "private": {"exit": 45, "kill": 40, "hang": 3, "slurmstepd": 3, "corrupt": 5, "controller": 4},
    "machines": {
        "exit": 36,
        "kill": 32,
        "hang": 4,
        "slurmstepd": 4,
        "corrupt": 6,
        "controller": 4,
        "machine": 8,
        "mount": 6,
    },
}


WEIGHTS["hyperpod"] = WEIGHTS["hyperpod-2026"] = {
    name: weight for name, weight in WEIGHTS["machines"].items() if name != "mount"
}
"""Mounts are HyperPod's own there, which no unit of ours mounts again."""


def kind(site: Site) -> str:
    """Which of WEIGHTS a site has."""
    return PROFILE.name if site.kind == "machines" and PROFILE.name in WEIGHTS else site.kind


@dataclass(frozen=True)
class Fault:
    """What, to which rank, and after how many steps of quiet."""

    number: int
    name: str
    rank: int
    after: int

    def make(self, job: Job) -> None:
        FAULTS[self.name](job, self.rank)


def drawn(kind: str, seed: int, count: int, apart: int) -> List[Fault]:
    """The same list for the same arguments. `apart`: mean number of steps between two. Every tenth is a warning, so
    that the failures in a row stay below what `job run` bears."""
    draw = random.Random(seed)
    weights = WEIGHTS[kind]
    return [
        Fault(
            number,
            "warn" if number % 10 == 9 else draw.choices(list(weights), list(weights.values()))[0],
            draw.randrange(2),
            draw.randrange(2 * apart),
        )
        for number in range(count)
    ]
