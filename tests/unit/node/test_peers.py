"""Nodes that only Slurm lets in, on a real Slurm: one that is free, and one that is busy with somebody's job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.errors import RunError
from hyperpod_kit.node.peers.query import PeerQuery, SlurmRoute, SlurmTransport, query_peers
from hyperpod_kit.run import LocalRunner
from tests.unit.job.private_slurm import PrivateSlurm, running

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateSlurm]:
    with running(nodes=2) as cluster:
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.environment[name])
        yield cluster


def test_free_nodes_get_a_job_and_busy_ones_a_step_beside_theirs(
    slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = slurm.base / "work"
    work.mkdir(mode=0o777)
    work.chmod(0o777)
    job = slurm.sbatch("--exclusive", "-w", "n1", "--wrap", "sleep 600", cwd=work)
    slurm.wait_for_script(job)
    shim = tmp_path / "ssh"
    shim.write_text("#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(work)
    nodes = tuple((f"i-{name}", "10.0.0.1", name) for name in ("n1", "n2", "n3"))
    question = PeerQuery(nodes, ("/bin/sh", "-c", 'echo "$SLURMD_NODENAME $(id -u) $SLURM_JOB_ID"'), 5.0, 10.0)
    said = {one["id"]: one for one in query_peers(question, LocalRunner(), "i-0")}
    assert said["i-n1"]["stdout"].split() == ["n1", str(slurm.user), job], "beside the job, as its owner"
    assert (said["i-n1"]["owner"], said["i-n2"]["owner"]) == (slurm.user, None)
    assert said["i-n2"]["stdout"].split()[:2] == ["n2", "0"] and said["i-n2"]["way"] == "slurm"
    assert "Permission denied (publickey).; over Slurm: srun: error:" in said["i-n3"]["error"]
    assert slurm.state(job) == "RUNNING", "nobody's job is disturbed"


def test_a_slurm_that_does_not_answer_is_asked_once() -> None:
    class Silent(LocalRunner):
        calls = 0

        def run(self, argv, **options):
            self.calls += 1
            raise RunError(argv, 1, stderr="slurm_load_jobs error: Unable to contact slurm controller")

    runner = Silent()
    over = SlurmTransport(runner)
    for name in ("n1", "n2"):
        assert over.route(name, ["x"]) == SlurmRoute(None, "slurm_load_jobs error: Unable to contact slurm controller")
    assert runner.calls == 1
