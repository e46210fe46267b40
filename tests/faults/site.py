"""Where the rows run: a Slurm of our own on loopback, or machines that boot. Both are seen from the host."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import List, Optional, Protocol, Tuple

from containers import IMAGES, PYTHON

from hyperpod_kit.job import cli
from tests.faults.profiles import CONTAINER, PROFILE
from tests.faults.roots import FolderRoot, PrivateBuckets, Root
from tests.support.wait import until
from tests.unit.job.private_slurm import REPOSITORY, PrivateSlurm

TRAINER = Path(__file__).with_name("trainer.py")
FOREIGN = Path(__file__).with_name("foreign_trainer.py")
CAPTURER = Path(__file__).with_name("capturer.py")
TORCH_TRAINER = Path(__file__).with_name("torch_trainer.py")
SYSTEM_PYTHON = "/usr/bin/python3 -I"


class Site(Protocol):
    """`kind`: `private` or `machines`; `nodes`: the workers by their names in Slurm.

    `there`: the jobs' directory as the nodes see it, `here`: the same directory on this host.
    `run`: words that start `job run` on a node; `library`: where hyperpod_kit is on a node; `python`: words that start
    the trainer's interpreter there.
    `user`: uid and gid of the jobs. `container`: srun's options for the container in which ranks run, if they do.
    """

    kind: str
    nodes: List[str]
    there: str
    here: Path
    run: str
    library: str
    python: str
    user: Tuple[int, int]
    container: str

    def slurm(self, *argv: str, check: bool = True, user: bool = False) -> str:
        """A Slurm command, as root or as the ordinary user."""

    def root(self, name: str) -> Root:
        """Where the job of this name has its checkpoints."""

    def kill_controller(self) -> None:
        """SIGKILL slurmctld."""

    def start_controller(self) -> None:
        """Start it again."""

    def settle(self) -> None:
        """After a row, whatever it did: no job is left, and every node is idle."""


def in_image(*mounts: object) -> str:
    """srun's options in the profile `container`, nothing in others."""
    if PROFILE != CONTAINER:
        return ""
    places = ",".join(str(mount) for mount in mounts)
    return f"--container-image={IMAGES}/{PYTHON} --container-mounts={places}"


def own(path: Path, uid: int, gid: int) -> None:
    """Give a tree to the job's user."""
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, gid)


class PrivateSite:
    """Nodes n1… on this machine: everything but the death of a machine."""

    kind = "private"
    python = SYSTEM_PYTHON

    def __init__(self, slurm: PrivateSlurm, buckets: Optional[PrivateBuckets] = None) -> None:
        self._cluster = slurm
        self._buckets = buckets
        self.nodes = [f"n{number}" for number in range(1, slurm.count + 1)]
        self.here = Path(tempfile.mkdtemp(prefix="faults-", dir=slurm.base))
        self.here.chmod(0o777)
        self.there = str(self.here)
        shutil.copy(TRAINER, self.here)
        self.run = f"/usr/bin/python3 -I -S {Path(cli.__file__).with_name('__main__.py')} run --json-lines"
        self.library = str(REPOSITORY)
        self.user = (slurm.user, slurm.user)
        self.container = in_image(slurm.base, f"{REPOSITORY}:{REPOSITORY}:ro")

    def slurm(self, *argv: str, check: bool = True, user: bool = False) -> str:
        return self._cluster.call(*argv, check=check, as_user=user, cwd=self.here)

    def root(self, name: str) -> Root:
        if self._buckets is not None:
            return self._buckets.root(name, self.here)
        return FolderRoot(self.here / name, f"{self.there}/{name}")

    def kill_controller(self) -> None:
        self._cluster.kill_daemon("slurmctld")

    def start_controller(self) -> None:
        self._cluster.start_controller()

    def settle(self) -> None:
        settle(self)


def settle(site: Site, *, timeout: float = 60.0) -> None:
    """Cancel what is left and bring every node back that only Slurm holds against us. Raises AssertionError."""

    jobs = site.slurm("squeue", "-h", "-o", "%A").split()
    if jobs:
        site.slurm("scancel", *jobs, check=False)

    def quiet() -> bool:
        if site.slurm("squeue", "-h", "-o", "%i").split():
            return False
        bad = not_idle(site)
        for name in bad:
            site.slurm("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        return not bad

    until(quiet, timeout, what="quiet cluster")


def not_idle(site: Site) -> List[str]:
    """Nodes that cannot take a job now."""
    lines = site.slurm("sinfo", "-h", "-N", "-o", "%N %T").split("\n")
    return sorted({line.split()[0] for line in lines if line and line.split()[1] != "idle"})
