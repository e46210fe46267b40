"""The guard of Slurm on machines: each fault is told of within a minute by everything that reports, and mended where it
is ours. One cluster for all of them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterator, List

import pytest
from driver import Driver, wait_until

from hyperpod_rehearsal import boot, targets
from hyperpod_rehearsal.machines import processes
from hyperpod_rehearsal.machines.machine import command_in_machine
from hyperpod_rehearsal.machines.network import set_node_link_state
from tests.rehearsal import jobs
from tests.support.output import output
from tests.support.slurm_guard import (
    BUSY,
    CONF,
    EXCHANGE_KEY,
    HIDE_COMPILER,
    KIT,
    MINUTE,
    PLUGIN_OF_ANOTHER_SLURM,
    PLUGINS,
    PROLOG,
    REMOVE_HOOKS,
    RESTORE_KEY,
    SHOW_COMPILER,
    guard_codes,
    reported_by_all,
    until_no_fault,
)

pytestmark = pytest.mark.full

WORKER = "worker-group/1"


@pytest.fixture
def quiet(cluster: Driver) -> Iterator[Driver]:
    until_no_fault(cluster)
    yield cluster
    until_no_fault(cluster)


def test_lines_that_somebody_removed_are_put_back(quiet: Driver) -> None:
    """What an agent or an admin does: our block goes, and slurmctld takes the file as it is."""
    before = quiet.on("controller", f"cat {CONF} {PLUGINS}")
    location = quiet.on("controller", "scontrol show config | grep ^StateSaveLocation")
    quiet.on("controller", REMOVE_HOOKS)
    # By its record: the guard may be faster than a question to slurmctld.
    wait_until("our lines", lambda: "put-back" in guard_codes(quiet, "controller"), timeout=BUSY * MINUTE, every=1)
    assert f" {PROLOG}" in quiet.on("controller", "scontrol show config")
    assert quiet.on("controller", f"cat {CONF} {PLUGINS}") == before
    assert quiet.on("controller", "scontrol show config | grep ^StateSaveLocation") == location
    reported_by_all(quiet, "controller", "put-back", fault=False)
    assert "restored Slurm's configuration" in quiet.on("controller", f"{KIT} node actions --since 10m")
    wait_until(
        "--auto-resume on a worker",
        lambda: "--auto-resume" in quiet.on(WORKER, "sbatch --help 2>&1"),
        timeout=BUSY * MINUTE,
    )


def test_a_plugin_of_another_slurm_is_built_anew(quiet: Driver) -> None:
    """As on an image with two Slurms, whose link an admin has turned."""
    quiet.on(WORKER, f"{PLUGIN_OF_ANOTHER_SLURM} && {HIDE_COMPILER}")
    try:
        reported_by_all(quiet, WORKER, "plugin-not-loaded", fault=True)
        doctor = quiet.on(WORKER, f"{KIT} job doctor", check=False)
        assert "S001" in doctor and "Incompatible Slurm plugin" in doctor, doctor
        assert "not in plugstack.conf" not in doctor
    finally:
        quiet.on(WORKER, SHOW_COMPILER)
    wait_until(
        "--auto-resume", lambda: "--auto-resume" in quiet.on(WORKER, "sbatch --help 2>&1"), timeout=BUSY * MINUTE
    )
    reported_by_all(quiet, WORKER, "plugin-built", fault=False)


def test_another_munge_key_is_the_nodes_fault_and_not_the_controllers(quiet: Driver) -> None:
    quiet.on(WORKER, EXCHANGE_KEY)
    try:
        reported_by_all(quiet, WORKER, "credential-refused", fault=True)
        doctor = quiet.on(WORKER, f"{KIT} job doctor 2>&1", check=False)
        assert "munge.key" in doctor and "systemctl status slurmctld" not in doctor, doctor
    finally:
        quiet.on(WORKER, RESTORE_KEY)
    resume = f"scontrol update nodename={quiet.on(WORKER, 'hostname -s').strip()} state=resume"
    quiet.on("controller", resume, check=False)


def entered(driver: Driver, node: str, argv: List[str]) -> str:
    """A command in a machine that no network leads to."""
    leaders = processes.children(targets.find_node(boot.require_running(driver.name)[1], node)["pid"])
    return output(command_in_machine(leaders[0], argv), check=False)


@contextlib.contextmanager
def cut_off(driver: Driver, node: str) -> Iterator[None]:
    layout, state = boot.require_running(driver.name)
    identity = targets.find_node(state, node)["instance_id"]
    set_node_link_state(layout, identity, up=False)
    try:
        yield
    finally:
        set_node_link_state(layout, identity, up=True)


def test_a_controller_that_was_cut_off_leaves_no_healthy_node_drained(quiet: Driver, tmp_path: Path) -> None:
    """Longer than SlurmdTimeout, with a job whose end slurmctld does not hear of."""
    script = "/fsx/trainer/short.sbatch"
    quiet.on("controller", "install -d -o trainer -g trainer /fsx/trainer")
    text = "#!/bin/bash\\n#SBATCH -N1 --requeue\\nsleep 20\\n"
    quiet.on("controller", f"printf '{text}' >{script}")
    job = quiet.on("controller", f"sbatch --parsable --output=/dev/null {script}", user="trainer").strip()
    wait_until("a start", lambda: quiet.job_state(job) == "RUNNING", timeout=BUSY * MINUTE)
    host = quiet.on("controller", f"squeue -h -j {job} -o %N").strip()
    with cut_off(quiet, "controller"):
        wait_until(
            f"controller-silent on {host}",
            lambda: "controller-silent" in guard_codes(quiet, host),
            timeout=BUSY * MINUTE,
            every=1,
        )
        health = quiet.on(host, f"{KIT} node health; echo $?", check=False)
        assert health.strip().endswith("1"), health
        # SlurmdTimeout of the rehearsal is 30 s: slurmctld takes its nodes for dead meanwhile.
        look = ["sinfo", "-h", "-N", "-o", "%T"]
        wait_until("lost nodes", lambda: "down" in entered(quiet, "controller", look), timeout=180)
    with jobs.told(quiet, job):
        wait_until(
            f"the end of job {job}",
            lambda: not quiet.on("controller", f"squeue -h -j {job} -o %T 2>/dev/null", check=False).strip(),
            timeout=2 * BUSY * MINUTE,
        )

    def all_idle() -> bool:
        return set(quiet.on("controller", "sinfo -h -N -o %T").split()) == {"idle"}

    wait_until("idle nodes, without a person", all_idle, timeout=BUSY * MINUTE)


def test_an_admins_drain_is_told_of_and_left_alone(quiet: Driver) -> None:
    name = quiet.on(WORKER, "hostname -s").strip()
    quiet.on("controller", f"scontrol update nodename={name} state=drain reason='a fan is loud'")
    try:
        reported_by_all(quiet, WORKER, "drained-by-others", fault=False)
        assert "drain" in quiet.on("controller", f"sinfo -h -n {name} -o %T")
    finally:
        quiet.on("controller", f"scontrol update nodename={name} state=undrain")
