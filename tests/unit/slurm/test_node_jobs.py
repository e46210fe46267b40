"""Jobs on certain nodes, and nodes that become empty, with a real Slurm on loopback."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence

import pytest

from hyperpod_kit.errors import WaitTimeout
from hyperpod_kit.remote.draining.vacate import Vacating, WaitLimit, undrain_or_report_failure, vacate
from hyperpod_kit.slurm import node_jobs
from tests.support.slurm_commands import SlurmCommands
from tests.support.wait import until
from tests.unit.job import private_slurm

pytestmark = pytest.mark.needs("slurm")
REASON = "hyperpod-kit:leaving:replace-node"


@pytest.fixture(scope="module")
def slurm() -> Iterator[private_slurm.PrivateSlurm]:
    with private_slurm.running(nodes=3) as found:
        yield found


def submit(slurm: private_slurm.PrivateSlurm, node: str, *options: str) -> str:
    words = ("-w", node, "--exclusive", "-o", "/dev/null", *options, "--wrap", "sleep 600")
    job = slurm.sbatch(*words, cwd=slurm.base)
    slurm.wait_for_script(job)
    return job


def no_captures(names: Sequence[str]) -> Dict[str, Optional[int]]:
    return dict.fromkeys(names, 0)


def node_state(slurm: private_slurm.PrivateSlurm, node: str) -> str:
    return slurm.call("scontrol", "-o", "show", "node", node)


def test_nodes_become_empty_and_are_let_go(slurm: private_slurm.PrivateSlurm) -> None:
    runner = SlurmCommands(slurm.environment)
    hostile = "x NodeList=n3\nJobId=1"
    stays = submit(slurm, "n1", "--no-requeue", "-J", hostile)
    moves = submit(slurm, "n2", "--requeue", "--comment", "hpk:auto-resume=1")
    jobs = node_jobs.query_jobs_holding_nodes(runner, ["n1", "n2", "n3", "head"])
    assert [(job.id, job.nodes, job.auto_resume, job.requeues) for job in jobs] == [
        (stays, ("n1",), False, False),
        (moves, ("n2",), True, True),
    ]
    assert "\n" not in jobs[0].name and node_jobs.query_jobs_holding_nodes(runner, ["n3"]) == []
    slurm.call("scontrol", "update", "nodename=n3", "state=drain", "reason=somebody's own")

    told: List[str] = []
    with pytest.raises(WaitTimeout, match=f"after 2 s {stays} are still running"):
        vacate(runner, ["n1", "n3"], Vacating.WHEN_IDLE, "replace-node", WaitLimit(2.0, 0.2), told.append, no_captures)
    assert "DRAIN" not in node_state(slurm, "n1") and "Reason=somebody's own" in node_state(slurm, "n3")
    assert slurm.state(stays) == "RUNNING"

    ended: List[Any] = []

    def tell(line: str) -> None:
        told.append(line)
        if f"waiting for {stays} (" in line and not ended:
            assert REASON in node_state(slurm, "n1")
            ended.append(slurm.call("scancel", stays))

    vacated = vacate(
        runner, ["n1", "n2", "head"], Vacating.DRAIN, "replace-node", WaitLimit(120.0, 0.2), tell, no_captures
    )
    assert ended and vacated.drained == ("n1", "n2") and vacated.reason == REASON
    assert any(f"job {moves} of" in line and "queued again" in line for line in told)
    assert any(f"job {stays} of" in line and "cannot be requeued" in line for line in told)
    until(lambda: slurm.state(moves) in ("PENDING", "RUNNING"), what="the job that was queued again")
    assert node_jobs.query_jobs_holding_nodes(runner, ["n1", "n2"]) == []
    assert node_jobs.drain_open_nodes_and_list_with_reason(runner, ["n1", "n2", "n3"], REASON) == ["n1", "n2"], (
        "said again, nothing changes"
    )
    undrain_or_report_failure(runner, ["n1", "n2", "n3"], REASON, told.append)
    assert "DRAIN" not in node_state(slurm, "n1") and "DRAIN" in node_state(slurm, "n3")
    assert node_jobs.drain_open_nodes_and_list_with_reason(runner, ["head"], REASON) == [], (
        "a controller is none of Slurm's nodes"
    )
    served = until(lambda: node_jobs.query_slurmd_start_times_of_up_nodes(runner, ["n1"]), what="n1 that serves")
    assert served["n1"] > 1e9
