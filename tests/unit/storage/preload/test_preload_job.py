"""`storage preload --then` on a real Slurm on loopback: the job behind it starts afterwards, or never."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict, Iterator

import pytest

from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm, running

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    with running(nodes=2, user=0) as cluster:
        yield cluster


def send(slurm: PrivateSlurm, *what: str) -> Dict[str, Any]:
    script = slurm.base / "train.sbatch"
    script.write_text(f"#!/bin/sh\n#SBATCH --auto-resume=1\ncat corpus/* > {slurm.base}/trained-$SLURM_JOB_ID\n")
    there = f"--chdir={slurm.base}"
    words = ["storage", "preload", *what, "--then", f"{there} {script}", "--sbatch", there, "--partition", "all"]
    done = subprocess.run(
        [sys.executable, "-m", "hyperpod_kit.cli.main", *words, "--json"],
        env=slurm.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: Dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_job_behind_it_starts_when_all_is_here_and_never_otherwise(slurm: PrivateSlurm) -> None:
    place = slurm.base / "corpus"
    place.mkdir()
    (place / "shard").write_text("tokens")
    done = send(slurm, str(place))
    trained = slurm.base / f"trained-{done['job']}"
    until(lambda: trained.exists() and trained.read_text() == "tokens", 240, what="job behind the preload")
    assert "1 of 1 files are loaded" in (slurm.base / f"slurm-{done['preload']}.out").read_text()

    lines = slurm.base / "list"
    lines.write_text(f"{place}/absent\n")
    failing = send(slurm, "--files-from", str(lines))
    until(lambda: slurm.state(failing["job"]) == "CANCELLED", 240, what="end of a job whose preload failed")
    assert not (slurm.base / f"trained-{failing['job']}").exists()
