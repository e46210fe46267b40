"""Machines that die: a worker, the batch host, the controller."""

from __future__ import annotations

import time
import uuid
from typing import Callable, cast

import pytest

from hyperpod_kit.model.states import LifecycleMode
from tests.faults.job import Job
from tests.faults.machines import SHARED, MachineSite
from tests.faults.profiles import PROFILE, PROFILES
from tests.faults.site import Site
from tests.support.wait import scaled, until

pytestmark = pytest.mark.machines
Row = Callable[..., None]
STEPS = 300
SETTLED = 10.0
"""Seconds in which a slurmctld that has come up ends what it does not know: its nodes register within five."""
WITHOUT_RETRY = pytest.mark.profiles(*(name for name, profile in PROFILES.items() if not profile.step_retry))
"""On HyperPod it is test_hyperpod.py's: nodes are exchanged under srun."""


@pytest.fixture
def site(site: Site) -> MachineSite:
    return cast(MachineSite, site)


def nodes_of(job: Job) -> list[str]:
    return list(job.rows("attempt")[-1]["nodes"])


@WITHOUT_RETRY
def test_a_worker_is_killed_with_a_spare(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1", sbatch=("-N3", "--no-kill"), options="--nodes 2").running()
    victim = nodes_of(job)[1]
    seconds = job.resumed(job.broken(lambda: site.kill_machine(victim)))
    assert victim not in nodes_of(job) and job.show()["Restarts"] == "0"
    job.ended_well(STEPS)
    assert job.classes == ["node_lost", "done"] and seconds < scaled(15) + job.start_up()
    row(
        "a worker's machine is killed, spare there (`-N3 --no-kill`, `--nodes 2`)",
        "the spare takes its place in the allocation",
        seconds,
        f"start-up {job.start_up()}",
    )


@WITHOUT_RETRY
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


def until_saved(site: MachineSite, since: float) -> None:
    """What was submitted in the last seconds before a crash Slurm itself has not written down."""
    until(lambda: site.saved_at() > since, what="saved state")


def test_the_controller_reboots(job: Job, site: MachineSite, row: Row) -> None:
    job.submit("--steps", str(STEPS), "--pause", "0.1").running()
    until_saved(site, job.rows("attempt")[-1]["t"])
    fault = job.broken(site.reboot_controller)
    job.ended_well(STEPS, timeout=150)
    unharmed = len(job.rows("attempt")) == 1
    row(
        "the controller's machine reboots",
        "the job does not notice" if unharmed else "resumed",
        None if unharmed else job.resumed(fault),
    )


def test_the_controllers_machine_is_replaced(job: Job, site: MachineSite, row: Row) -> None:
    """Slurm's state is on shared storage: the job that runs and the one that waits are known to the new machine.

    Where HyperPod starts slurmctld before our script, that one begins without the state and ends what runs on nodes
    that it hears of (docs/lifecycle.md): there the job that runs may be requeued, once.
    """
    job.submit("--steps", "4000", "--pause", "0.1").running()
    waiting = Job(site).submit("--steps", "20", sbatch=("-N2", "--hold"))
    until_saved(site, time.time())
    began = time.monotonic()
    fault = job.broken(site.replace_controller)
    seconds = time.monotonic() - began
    try:
        state = site.on("controller", "sh", "-c", "scontrol show config | grep StateSaveLocation")
        assert f"{SHARED}/.hyperpod-kit/" in state, state
        replaced = time.time()
        until(lambda: job.progress()[-1]["t"] > replaced + SETTLED, 240, what="steps after it")
        requeued = len(job.rows("attempt")) == 2
        resumed = job.resumed(fault) if requeued else None
        assert not requeued or PROFILE.mode is LifecycleMode.ON_INIT_COMPLETE, job.told()
        assert job.show()["JobState"] == "RUNNING" and job.show()["Restarts"] == str(int(requeued)), job.told()
        assert len(job.rows("attempt")) == 1 + requeued, job.told()
        assert waiting.show()["Reason"] == "JobHeldUser"
        site.slurm("scontrol", "release", waiting.id)
        site.slurm("scancel", job.id, user=True)
        waiting.ended_well(20, timeout=120)
        assert int(Job(site).submit("--steps", "20").id) > int(waiting.id) > int(job.id)
    finally:
        site.configure()
    row(
        "the controller's machine is killed and replaced (Slurm's state on FSx)",
        "the job that runs is requeued once, the one that waits still does, job numbers go on"
        if requeued
        else "the job that runs does not notice, the one that waits still does, job numbers go on",
        resumed,
        f"slurmctld is back after {seconds:.0f} s",
    )


CAPTURING = """\
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=1 --requeue --chdir={there} --output={root}.out
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] && exec srun /usr/bin/python3 -I {there}/capturer.py {library} {root}
true
"""


def test_a_worker_is_cut_off_and_comes_back(site: MachineSite, row: Row) -> None:
    """Slurm runs no Epilog there. What the trainers captured is handed in by both nodes, and the memory is free."""
    name = f"cut-{uuid.uuid4().hex[:8]}"
    root, log = site.here / name, site.here / f"{name}.out"
    root.mkdir(mode=0o777)
    root.chmod(0o777)
    script = site.here / f"{name}.sbatch"
    script.write_text(CAPTURING.format(there=site.there, library=site.library, root=f"{site.there}/{name}"))
    job = site.slurm("sbatch", "--parsable", f"{site.there}/{script.name}", user=True).strip()
    until(lambda: log.exists() and log.read_text().count("captured") == 2, what="two captures")
    shown = site.slurm("scontrol", "-o", "show", "job", job)
    victim = next(
        node
        for node in site.nodes
        if f"BatchHost={node} " not in shown and "slurmstepd" in site.on(node, "ps", "-e", "-o", "args=")
    )
    site.cut_off(victim)
    try:
        until(lambda: "DOWN" in site.node(victim)[0], 90, what="its loss")
        until(
            lambda: "JobState=COMPLETED" in site.slurm("scontrol", "-o", "show", "job", job, check=False),
            90,
            what="the job's end elsewhere",
        )
    finally:
        site.cut_off(victim, heal=True)
    healed = time.monotonic()
    assert site.on(victim, "find", "/dev/shm", "-type", "f").split(), "nothing was left to sweep"
    until(lambda: not site.on(victim, "find", "/dev/shm", "-type", "f").split(), 300, what="free memory")
    seconds = round(time.monotonic() - healed, 1)
    until(lambda: [*root.glob("seq-*/MANIFEST.json")], what="the commit")
    row(
        "a worker is cut off the network for longer than `SlurmdTimeout`, and comes back",
        "the job goes on elsewhere; what was captured there is saved, its shared memory freed",
        None,
        f"free {seconds:.0f} s after the return",
    )
