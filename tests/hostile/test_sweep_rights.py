"""The sweep needs no root: as SlurmUser it queues an orphan again, and an ordinary user moves nobody's job with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.job.cli import __file__ as job_cli
from tests.hostile.loopback import ATTACKER, VICTIM, Two, two_users
from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]

SLURM_USER = 5
"""`games`."""


class WithoutRoot(PrivateSlurm):
    """slurmctld as SlurmUser."""

    def start_controller(self, *options: str) -> None:
        for path in (self.base / "state", self.base / "slurmctld.log", self.base / "slurmctld.pid"):
            if path.suffix:
                path.touch()
            os.chown(path, SLURM_USER, SLURM_USER)
        conf = self.base / "slurm.conf"
        conf.write_text(conf.read_text().replace("SlurmUser=root", f"SlurmUser={SLURM_USER}"))
        super().start_controller(*options)


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with two_users(nodes=1, kind=WithoutRoot) as found:
        yield found


def sweep(two: Two, uid: int) -> subprocess.CompletedProcess[str]:
    """What the unit runs, as that user."""
    program = Path(job_cli).with_name("__main__.py")
    argv = [
        "setpriv",
        f"--reuid={uid}",
        f"--regid={uid}",
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
        "/usr/bin/python3",
        "-I",
        "-S",
        "-B",
        str(program),
        "sweep",
    ]
    return subprocess.run(
        argv, env=two.slurm.environment, cwd="/", text=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_slurmuser_queues_an_orphan_again_and_another_user_does_not(two: Two) -> None:
    orphan = two.submit(VICTIM, "-o", "/dev/null", "--requeue", "--comment=mine hpk:elsewhere", "--wrap", "exit 3")
    until(lambda: two.slurm.state(orphan) == "FAILED", what="failed job")
    refused = sweep(two, ATTACKER)
    assert refused.returncode == 1 and f"job {orphan} left a host" in refused.stdout
    assert two.slurm.state(orphan) == "FAILED"
    done = sweep(two, SLURM_USER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"job {orphan} left a host without the checkpoint root, n1: requeued\n"
    shown = two.slurm.call("scontrol", "-o", "show", "job", orphan)
    assert " Restarts=1 " in shown and " Comment=mine " in shown
    two.over(orphan)
