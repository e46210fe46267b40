"""A real Slurm on loopback with two users that slurmd starts jobs of: one trains, the other attacks; root looks on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Dict, Iterator, Type

from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm, running

VICTIM, ATTACKER = 65534, 9
"""`nobody` and `news`: slurmd starts no job of a number that has no name."""


class Two:
    """`slurm` with a directory of each of them."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self.slurm = slurm
        self.places: Dict[int, Path] = {}
        for uid in (VICTIM, ATTACKER):
            self.places[uid] = slurm.base / f"of-{uid}"
            self.places[uid].mkdir()
            os.chown(self.places[uid], uid, uid)

    def call(self, uid: int, *argv: str, check: bool = True) -> str:
        """What a command of that user's printed."""
        done = subprocess.run(
            ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *argv],
            env=self.slurm.environment,
            cwd=self.places[uid],
            text=True,
            timeout=60,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0 or not check, f"{argv} exited {done.returncode}: {done.stdout}"
        return done.stdout

    def submit(self, uid: int, *argv: str) -> str:
        """The number of a job of that user's."""
        return self.call(uid, "sbatch", "--parsable", *argv).strip().split(";")[0]

    def train(self, *argv: str) -> str:
        """A job of the victim's that runs."""
        job = self.submit(VICTIM, "-o", "/dev/null", "--comment=hpk:auto-resume=1", *argv, "--wrap", "sleep 600")
        self.slurm.wait_for_script(job)
        return job

    def untouched(self, job: str) -> bool:
        """Whether the victim's job runs as if nobody had ever looked at it."""
        shown = self.slurm.call("scontrol", "-o", "show", "job", job)
        return all(word in shown for word in (" JobState=RUNNING ", " Restarts=0 ", " Comment=hpk:auto-resume=1 "))

    def over(self, *jobs: str) -> None:
        """End them, whosever they are, and wait."""
        self.slurm.call("scancel", *jobs, check=False)
        until(
            lambda: (
                not self.slurm.call("squeue", "-h", "-j", ",".join(jobs), check=False).strip()
                or all(self.slurm.state(job) in ("CANCELLED", "FAILED", "COMPLETED", "") for job in jobs)
            ),
            what="the ends",
        )


@contextlib.contextmanager
def two_users(nodes: int = 2, kind: Type[PrivateSlurm] = PrivateSlurm) -> Iterator[Two]:
    with running(kind, nodes=nodes) as cluster:
        yield Two(cluster)
