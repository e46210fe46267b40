"""Machines that die: a worker, the batch host, the controller."""

from __future__ import annotations

from typing import Callable, cast

import pytest

from .job import Job
from .machines import MachineSite
from .site import Site

pytestmark = pytest.mark.machines
Row = Callable[..., None]
STEPS = 300


@pytest.fixture
def site(site: Site) -> MachineSite:
    return cast(MachineSite, site)


def nodes_of(job: Job) -> list[str]:
    return list(job.rows("attempt")[-1]["nodes"])


def test_a_worker_is_killed_with_a_spare(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1", sbatch=("-N3", "--no-kill"), options="--nodes 2").running()
    victim = nodes_of(job)[1]
    seconds = job.resumed(job.broken(lambda: site.kill_machine(victim)))
    assert victim not in nodes_of(job) and job.show()["Restarts"] == "0"
    job.ended_well(STEPS)
    assert job.classes == ["node_lost", "done"] and seconds < 15 + job.start_up()
    row("a worker's machine is killed, spare there (`-N3 --no-kill`, `--nodes 2`)",
        "the spare takes its place in the allocation", seconds, f"start-up {job.start_up()}")


def test_a_worker_is_killed_without_a_spare(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1", sbatch=("-N3",)).running()
    victim = nodes_of(job)[1]
    seconds = job.resumed(job.broken(lambda: site.kill_machine(victim)), 120)
    assert sorted(nodes_of(job)) == sorted(site.nodes)
    job.ended_well(STEPS, 3)
    row("a worker's machine is killed, no spare, it is replaced", "requeued, runs once the node is back", seconds)


def test_the_batch_host_is_killed(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1").running()
    victim = job.show()["BatchHost"]
    seconds = job.resumed(job.broken(lambda: site.kill_machine(victim)), 120)
    job.ended_well(STEPS)
    row("the batch host's machine is killed", "requeued, runs on other nodes", seconds)


def test_the_batch_host_is_killed_with_no_kill(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1", sbatch=("-N2", "--no-kill")).running()
    victim = job.show()["BatchHost"]
    seconds = job.resumed(job.broken(lambda: site.kill_machine(victim)), 180)
    job.ended_well(STEPS)
    row("the batch host's machine is killed, `--no-kill`", "requeued, no orphan", seconds)


def test_the_controller_reboots(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1").running()
    fault = job.broken(site.reboot_controller)
    job.ended_well(STEPS, timeout=150)
    unharmed = len(job.rows("attempt")) == 1
    row("the controller's machine reboots", "the job does not notice" if unharmed else "resumed",
        None if unharmed else job.resumed(fault))

