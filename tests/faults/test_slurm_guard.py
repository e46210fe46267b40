"""What the guard of Slurm looks after goes wrong under a job: hooks, plugin, munge key, the controller's network."""

from __future__ import annotations

import signal
import time
from typing import Callable, Iterator, cast

import pytest

from hyperpod_kit.node.slurm.guard.mend import BUILT, RESTORED
from tests.faults.job import Job
from tests.faults.machines import MachineSite
from tests.faults.site import Site, not_idle
from tests.support.slurm_guard import (
    EXCHANGE_KEY,
    HIDE_COMPILER,
    PLUGIN_OF_ANOTHER_SLURM,
    PROLOG,
    REMOVE_HOOKS,
    RESTORE_KEY,
    SHOW_COMPILER,
    reported_by_all,
    until_code,
    until_mended,
    until_no_fault,
)
from tests.support.wait import until

pytestmark = pytest.mark.machines
Row = Callable[..., None]
ENDLESS = ("--steps", "100000", "--pause", "0.1")
"""The job outlives whatever the guard is waited for."""
SETTLED = 10.0
"""Seconds in which slurmctld ends what it had given up on nodes that it hears again."""


@pytest.fixture
def site(site: Site) -> Iterator[MachineSite]:
    found = cast(MachineSite, site)
    until_no_fault(found.driver)
    yield found
    found.settle()
    until_no_fault(found.driver)


def other_host(job: Job) -> str:
    """A node of the job that is not its batch host."""
    batch_host = job.show()["BatchHost"]
    return next(node for node in job.rows("attempt")[-1]["nodes"] if node != batch_host)


def lost(site: MachineSite) -> bool:
    """Whether slurmctld takes a node for dead, or has not heard of it."""
    return any(word in site.slurm("sinfo", "-h", "-N", "-o", "%T", check=False) for word in ("down", "unk", "*"))


def went_on(job: Job, newest: str) -> None:
    """The last attempt began with that checkpoint or a later one. Raises AssertionError."""
    begun = job.rows("attempt")[-1]
    assert begun["from"] >= newest and begun["rejected"] == [], job.told()


def test_the_hooks_are_removed(job: Job, site: MachineSite, row: Row) -> None:
    job.submit(*ENDLESS).running()
    removed = time.time()
    site.driver.on("controller", REMOVE_HOOKS)
    seconds = until_mended(site.driver, "controller", RESTORED, removed)
    assert f" {PROLOG}" in site.slurm("scontrol", "show", "config")
    reported_by_all(site.driver, "controller", "put-back", fault=False)
    newest = job.checkpoints()[-1].name
    resumed = job.resumed(job.send(signal.SIGKILL))
    went_on(job, newest)
    assert job.classes == ["crash"] and job.show()["Restarts"] == "0"
    row(
        "our lines are taken out of slurm.conf under a job (`scontrol reconfigure`), then a rank is SIGKILLed",
        "the guard puts them back, and all commands that report say so; retried in the allocation",
        resumed,
        f"put back after {seconds:.0f} s",
    )


def test_the_plugin_is_of_another_slurm(job: Job, site: MachineSite, row: Row) -> None:
    job.submit(*ENDLESS).running()
    worker = other_host(job)
    site.driver.on(worker, f"{PLUGIN_OF_ANOTHER_SLURM} && {HIDE_COMPILER}")
    try:
        seconds = until_code(site.driver, worker, "plugin-not-loaded")
        reported_by_all(site.driver, worker, "plugin-not-loaded", fault=True)
        newest = job.checkpoints()[-1].name
        resumed = job.resumed(job.send(signal.SIGKILL))
    finally:
        shown = time.time()
        site.driver.on(worker, SHOW_COMPILER)
    built = until_mended(site.driver, worker, BUILT, shown)
    went_on(job, newest)
    assert job.classes == ["crash"] and job.show()["Restarts"] == "0"
    row(
        "a worker's plugin is of another Slurm and no compiler is there, then a rank is SIGKILLed",
        "all commands that report say so; retried in the allocation; the guard builds the plugin once it can",
        resumed,
        f"reported after {seconds:.0f} s, built {built:.0f} s after the compiler's return",
    )


def test_a_munge_key_is_exchanged(job: Job, site: MachineSite, row: Row) -> None:
    job.submit(*ENDLESS).running()
    worker = other_host(job)
    newest = job.checkpoints()[-1].name
    fault = job.broken(lambda: site.driver.on(worker, EXCHANGE_KEY))
    try:
        seconds = until_code(site.driver, worker, "credential-refused")
        reported_by_all(site.driver, worker, "credential-refused", fault=True)
        resumed = job.resumed(fault, 240)
        assert worker not in job.rows("attempt")[-1]["nodes"], job.told()
        went_on(job, newest)
    finally:
        site.driver.on(worker, RESTORE_KEY)
    row(
        "a worker's munge key is exchanged under a job",
        "all commands that report name the key; the job goes on elsewhere once Slurm has given the worker up",
        resumed,
        f"reported after {seconds:.0f} s",
    )


def test_the_controller_is_cut_off(job: Job, site: MachineSite, row: Row) -> None:
    """For longer than SlurmdTimeout: slurmctld takes every node for dead meanwhile."""
    job.submit(*ENDLESS).running()
    worker = other_host(job)
    fault = job.broken(lambda: site.cut_off("controller"))
    try:
        seconds = until_code(site.driver, worker, "controller-silent")
        reported_by_all(site.driver, worker, "controller-silent", fault=True)
        until(lambda: lost(site), 240, what="lost nodes")
    finally:
        site.cut_off("controller", heal=True)
    until(lambda: not lost(site), 240, what="nodes that slurmctld hears")
    healed = time.time()
    job._wait("steps after it", lambda: job.progress()[-1]["t"] > healed + SETTLED, 300)
    resumed = job.resumed(fault) if len(job.rows("attempt")) > 1 else None
    site.slurm("scancel", job.id, user=True)
    until(lambda: not not_idle(site), 300, what="idle nodes, without a person")
    row(
        "the controller is cut off for longer than `SlurmdTimeout` under a job",
        "all commands that report say so; every node takes jobs again without a person, the job "
        + ("does not notice" if resumed is None else "is queued again"),
        resumed,
        f"reported after {seconds:.0f} s",
    )
