"""HyperPod's own retry of a step: nodes are exchanged under a running srun, which then starts the same ranks again."""

from __future__ import annotations

import shutil
import signal
from typing import Any, Callable, Dict, List, cast

import pytest

from tests.faults.job import Job
from tests.faults.machines import MachineSite
from tests.faults.profiles import PROFILES
from tests.faults.site import Site
from tests.faults.trainer import weights
from tests.support.damage import flip

pytestmark = [
    pytest.mark.machines,
    pytest.mark.profiles(*(name for name, profile in PROFILES.items() if profile.step_retry)),
]
Row = Callable[..., None]
STEPS = 400
REPLACED = 150.0
"""Seconds for a replaced node and the retry after it."""
RETRIED = "Retrying step. Attempt number: 1"


@pytest.fixture
def site(site: Site) -> MachineSite:
    return cast(MachineSite, site)


def victim(job: Job) -> str:
    """A node of the step that is not the batch host."""
    host = job.show()["BatchHost"]
    return next(node for node in map(job.node_of, range(2)) if node != host)


def begun(job: Job) -> List[Dict[str, Any]]:
    """What rank 0 began with, launch by launch."""
    return [line for line in job.lines() if line.get("rank") == 0 and "at" in line]


def in_mid_srun(job: Job, *sbatch: str, nodes: int = 2) -> str:
    """A job in its second attempt, which has committed more than it began with; the name of what it began with."""
    job.submit("--steps", str(STEPS), "--pause", "0.1", sbatch=(f"-N{nodes}", *sbatch)).at_step(12)
    job.resumed(job.send(signal.SIGKILL))
    job.running()
    began = str(job.rows("attempt")[-1]["from"])
    job._wait("newer checkpoints", lambda: job.checkpoints()[-3].name > began, 60)
    return began


def retried(job: Job, began: str) -> None:
    """The last launch is of the same srun, and went on from what was committed during it. Raises AssertionError."""
    launches = begun(job)
    assert launches[-1]["attempt"] == launches[-2]["attempt"] and job.show()["Restarts"] == "0", launches
    assert job.rows("restored")[-1]["from"] > began and RETRIED in job.log, job.rows("restored")
    assert any(RETRIED in row["words"] for row in job.rows("hyperpod"))


def test_a_node_dies_in_a_step(job: Job, site: MachineSite, row: Row) -> None:
    began = in_mid_srun(job)
    lost = victim(job)
    seconds = job.resumed(job.broken(lambda: site.kill_machine(lost)), REPLACED)
    job.ended_well(STEPS)
    retried(job, began)
    assert job.classes == ["crash", "done"]
    row("a node dies in a step", "HyperPod replaces it and retries the step in the same srun, from the newest", seconds)


def test_a_node_dies_and_no_other_is_free(job: Job, site: MachineSite, row: Row) -> None:
    """The job has all nodes: what Slurm gives it is the one that HyperPod has replaced."""
    count = len(site.nodes)
    began = in_mid_srun(job, nodes=count)
    lost = victim(job)
    seconds = job.resumed(job.broken(lambda: site.kill_machine(lost)), REPLACED)
    job.ended_well(STEPS, count)
    retried(job, began)
    assert {job.node_of(rank) for rank in range(count)} == set(site.nodes)
    row(
        "a node dies in a step, no other node is free",
        "the step is retried in the same srun once the node is replaced",
        seconds,
    )


def test_retention_has_removed_what_the_srun_began_with(job: Job, site: MachineSite, row: Row) -> None:
    began = in_mid_srun(job)
    lost = victim(job)
    fault = job.broken(lambda: site.kill_machine(lost))
    shutil.rmtree(job.root / began)
    seconds = job.resumed(fault, REPLACED)
    job.ended_well(STEPS)
    retried(job, began)
    row(
        "a node dies in a step, retention has removed the checkpoint that it began with",
        "the step is retried from the newest",
        seconds,
    )


def test_the_newest_is_damaged_at_a_retry(job: Job, site: MachineSite, row: Row) -> None:
    began = in_mid_srun(job)
    lost = victim(job)
    fault = job.broken(lambda: site.kill_machine(lost))
    job._wait("the end of the launch", lambda: "cluster agent" in job.log, 60)
    newest = job.checkpoints()[-1]
    flip(newest / "shard-00000.safetensors", 0)
    seconds = job.resumed(fault, REPLACED)
    job.ended_well(STEPS)
    retried(job, began)
    restored = job.rows("restored")[-1]
    assert restored["from"] < newest.name and restored["rejected"][0]["attempt"] == newest.name, restored
    row("a node dies in a step, the newest checkpoint is damaged", "the step is retried from the one before", seconds)


def test_a_second_node_dies_after_the_retry(job: Job, site: MachineSite, row: Row) -> None:
    began = in_mid_srun(job)
    first = victim(job)
    job.resumed(job.broken(lambda: site.kill_machine(first)), REPLACED)
    job.running()
    second = victim(job)
    seconds = job.resumed(job.broken(lambda: site.kill_machine(second)), REPLACED)
    job.ended_well(STEPS)
    retried(job, began)
    assert "Retrying step. Attempt number: 2" in job.log
    steps = [one["at"] for one in begun(job)][-3:]
    assert steps == sorted(set(steps)), steps
    row("a second node dies after the retry", "the step is retried again, from what the first retry saved", seconds)


def test_a_node_dies_in_a_step_with_gres(job: Job, site: MachineSite, row: Row) -> None:
    in_mid_srun(job, "--gres=gpu:1")
    lost = victim(job)
    newest = job.checkpoints()[-1].name
    seconds = job.resumed(job.broken(lambda: site.kill_machine(lost)), REPLACED)
    job.ended_well(STEPS, timeout=120)
    assert job.show()["Restarts"] == "1" and RETRIED not in job.log and "ResumeAction=REQUEUE" in job.log
    assert job.rows("restored")[-1]["from"] >= newest
    row("a node dies in a step, the job has GRES", "HyperPod requeues the job, which goes on from the newest", seconds)


def test_a_node_is_marked_and_a_rank_fails(job: Job, site: MachineSite, row: Row) -> None:
    began = in_mid_srun(job)
    marked = victim(job)
    site.slurm("scontrol", "update", f"nodename={marked}", "state=fail", "reason=Action:Replace")
    fault = job.broken(lambda: job.send(signal.SIGKILL))
    seconds = job.resumed(fault, REPLACED)
    job.ended_well(STEPS)
    retried(job, began)
    row(
        "a rank fails on a node that HyperPod's agents have marked (`Action:Replace`)",
        "HyperPod replaces the node and retries the step in the same srun",
        seconds,
    )


def test_a_crash_without_a_fault_of_the_hardware(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.05").at_step(12)
    seconds = job.resumed(job.send(signal.SIGKILL))
    job.ended_well(STEPS)
    assert "ResumeAction=NONE" in job.log and job.classes == ["crash", "done"] and RETRIED not in job.log
    row("a rank is SIGKILLed, no fault of the hardware", "`ResumeAction=NONE`: `job run` retries by itself", seconds)


def test_a_node_dies_under_a_trainer_of_another_framework(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), program="foreign_trainer.py").at_step(45)
    lost = victim(job)
    seconds = job.resumed(job.broken(lambda: site.kill_machine(lost)), REPLACED)
    assert job.finish() == "COMPLETED", job.told()
    assert job.weights()[0] == weights(1, STEPS)[0]
    launches = begun(job)
    assert len(job.rows("attempt")) == 1 and launches[0]["resumed"] == "none" and launches[1]["at"] >= 40, launches
    row(
        "a node dies under a trainer of another framework, in its first attempt",
        "the step is retried from its newest checkpoint, not from scratch",
        seconds,
    )
