"""Accounting comes to a slurmctld that has run without it, with a real MariaDB and slurmdbd.

Needs a Slurm of 24.05 or later: before that there was no id of a cluster.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Callable, Iterator

import pytest

from hyperpod_kit.node.slurm import cluster_id
from tests.faults.accounting import LateAccountedSlurm
from tests.faults.profiles import OF_2026, PROFILE
from tests.support.wait import until

Row = Callable[..., None]


@pytest.fixture
def late() -> Iterator[LateAccountedSlurm]:
    base = Path(tempfile.mkdtemp(prefix="hpk-faults-"))
    cluster = LateAccountedSlurm(base, nodes=2, release=PROFILE.release)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.mark.needs("accounting")
@pytest.mark.profiles("hyperpod", *OF_2026)
def test_accounting_comes_after_slurmctld(late: LateAccountedSlurm, row: Row) -> None:
    job = late.sbatch("-n1", "--output=/dev/null", "--chdir=/tmp", "--wrap", "sleep 600", cwd=Path("/tmp"))
    late.wait_for_script(job)
    own = (late.base / "state/clustername").read_text()
    late.stop_controller_and_begin_accounting()
    with pytest.raises(AssertionError, match="CLUSTER ID MISMATCH"):
        late.start_accounted_controller()

    state, name = str(late.base / "state"), own.partition("|")[0]
    assert cluster_id.rename_file_with_own_id(state, name) == own.partition("|")[2].strip()
    late.start_accounted_controller()
    assert (late.base / "state/clustername").read_text() != own
    until(lambda: late.state(job) == "RUNNING", what="the job, which has run on")
    until(lambda: job in late.call("sacct", "-n", "-X", "-o", "jobid%20"), what="the job in the accounts")
    late.kill_daemon("slurmctld")
    late.start_accounted_controller()
    row(
        "accounting is set up after slurmctld has run without it (Slurm 24.05 and later)",
        "slurmctld takes the id of the database in place of its own; the job runs on",
    )
