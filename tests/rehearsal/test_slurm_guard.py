"""The guard of Slurm on machines: each fault is told of within a minute by everything that reports, and mended where it
is ours. One cluster for all of them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from driver import CONFIG, Driver, wait_until

from hyperpod_kit.rehearsal import boot, processes, targets
from hyperpod_kit.rehearsal.machine import inside
from hyperpod_kit.rehearsal.network import set_link
from tests.rehearsal import jobs
from tests.support.output import output

pytestmark = pytest.mark.full

KIT = "/opt/hyperpod-kit/current/bin/hyperpod-kit"
RECORD = "/run/hyperpod-kit/slurm.json"
CONF = "/opt/slurm/etc/slurm.conf"
PLUGINS = "/opt/slurm/etc/plugstack.conf"
PROLOG = "/opt/hyperpod-kit/current/slurm/prolog.sh"
WORKER = "worker-group/1"
MINUTE = 60.0
"""That a fault may take to be told of; a wait has more, for machines that other tests keep busy."""
BUSY = 4


def codes(driver: Driver, node: str) -> Dict[str, bool]:
    """What the guard's last look on a node found: code -> whether it is a fault."""
    text = driver.on(node, f"cat {RECORD}", check=False)
    found: List[Dict[str, Any]] = json.loads(text)["findings"] if text.startswith("{") else []
    return {one["code"]: one["fault"] for one in found}


def told_by_all(driver: Driver, node: str, code: str, *, fault: bool) -> None:
    """`node health` there, `validate-mounts` and `diagnose` from outside have it, each by its exit code too."""
    wait_until(f"{code} on {node}", lambda: codes(driver, node).get(code) is fault, timeout=BUSY * MINUTE, every=1)
    health = driver.on(node, f"{KIT} node health --json; echo $?")
    answer, code_of_health = health.rsplit("}", 1)
    assert code in [one["code"] for one in json.loads(answer + "}")["slurm"]], health
    listed = {one["instance_id"]: one["group"] for one in driver.nodes()}
    own = targets.find(boot.running(driver.name)[1], node)["instance_id"]
    mounts = driver.data("validate-mounts", str(CONFIG), check=False)
    [there] = [one for one in mounts["nodes"] if one["instance_id"] == own]
    assert code in [one["code"] for one in there["slurm"]], there
    diagnosis = driver.data("diagnose", str(CONFIG), check=False)
    [seen] = [one for one in diagnosis["nodes"] if one["target"]["instance_id"] == own]
    assert code in [one["code"] for one in seen["slurm"]], seen
    if fault:
        assert code_of_health.strip() == "1" and not there["healthy"] and not seen["healthy"], (health, there, seen)
    assert own in listed


def well(driver: Driver) -> None:
    """No node has a fault, and `validate-mounts` says so."""
    nodes = [one["instance_id"] for one in driver.nodes()]

    def quiet() -> bool:
        return not any(any(codes(driver, node).values()) for node in nodes)

    wait_until("a cluster without a fault", quiet, timeout=BUSY * MINUTE, every=2)
    assert driver.data("validate-mounts", str(CONFIG))["healthy"]


@pytest.fixture
def quiet(cluster: Driver) -> Iterator[Driver]:
    well(cluster)
    yield cluster
    well(cluster)


WITHOUT_BLOCK = f"sed -i '/>>> hyperpod-kit/,/<<< hyperpod-kit/d' {CONF} {PLUGINS} && scontrol reconfigure"


def test_lines_that_somebody_removed_are_put_back(quiet: Driver) -> None:
    """What an agent or an admin does: our block goes, and slurmctld takes the file as it is."""
    before = quiet.on("controller", f"cat {CONF} {PLUGINS}")
    location = quiet.on("controller", "scontrol show config | grep ^StateSaveLocation")
    quiet.on("controller", WITHOUT_BLOCK)
    # By its record: the guard may be faster than a question to slurmctld.
    wait_until("our lines", lambda: "put-back" in codes(quiet, "controller"), timeout=BUSY * MINUTE, every=1)
    assert f" {PROLOG}" in quiet.on("controller", "scontrol show config")
    assert quiet.on("controller", f"cat {CONF} {PLUGINS}") == before
    assert quiet.on("controller", "scontrol show config | grep ^StateSaveLocation") == location
    told_by_all(quiet, "controller", "put-back", fault=False)
    assert "restored Slurm's configuration" in quiet.on("controller", f"{KIT} node actions --since 10m")
    wait_until(
        "--auto-resume on a worker",
        lambda: "--auto-resume" in quiet.on(WORKER, "sbatch --help 2>&1"),
        timeout=BUSY * MINUTE,
    )


def test_a_plugin_of_another_slurm_is_built_anew(quiet: Driver) -> None:
    """As on an image with two Slurms, whose link an admin has turned."""
    plugin = "/opt/hyperpod-kit/spank/auto_resume.so"
    other = (
        "rm -rf /root/other && mkdir /root/other && cp -r /usr/include/slurm /root/other/ && "
        "sed -i 's/\\(define SLURM_VERSION_NUMBER\\).*/\\1 0x190b00/' /root/other/slurm/slurm_version.h && "
        f"cc -shared -fPIC -O2 -I /root/other -o {plugin}.new "
        f"/opt/hyperpod-kit/current/slurm/plugin/auto_resume.c && mv {plugin}.new {plugin}"
    )
    hidden = "mv /usr/bin/cc /usr/bin/cc.away"
    quiet.on(WORKER, f"{other} && {hidden}")
    try:
        told_by_all(quiet, WORKER, "plugin-not-loaded", fault=True)
        doctor = quiet.on(WORKER, f"{KIT} job doctor", check=False)
        assert "S001" in doctor and "Incompatible Slurm plugin" in doctor, doctor
        assert "not in plugstack.conf" not in doctor
    finally:
        quiet.on(WORKER, "mv /usr/bin/cc.away /usr/bin/cc")
    wait_until(
        "--auto-resume", lambda: "--auto-resume" in quiet.on(WORKER, "sbatch --help 2>&1"), timeout=BUSY * MINUTE
    )
    told_by_all(quiet, WORKER, "plugin-built", fault=False)


def test_another_munge_key_is_the_nodes_fault_and_not_the_controllers(quiet: Driver) -> None:
    key = "/etc/munge/munge.key"
    restart = "systemctl restart munge"
    exchange = f"cp -a {key} {key}.kept && head -c 128 /dev/urandom >{key} && {restart}"
    quiet.on(WORKER, exchange)
    try:
        told_by_all(quiet, WORKER, "credential-refused", fault=True)
        doctor = quiet.on(WORKER, f"{KIT} job doctor 2>&1", check=False)
        assert "munge.key" in doctor and "systemctl status slurmctld" not in doctor, doctor
    finally:
        quiet.on(WORKER, f"mv {key}.kept {key} && {restart} && systemctl restart slurmd")
    resume = f"scontrol update nodename={quiet.on(WORKER, 'hostname -s').strip()} state=resume"
    quiet.on("controller", resume, check=False)


def entered(driver: Driver, node: str, argv: List[str]) -> str:
    """A command in a machine that no network leads to."""
    leaders = processes.children(targets.find(boot.running(driver.name)[1], node)["pid"])
    return output(inside(leaders[0], argv), check=False)


@contextlib.contextmanager
def cut_off(driver: Driver, node: str) -> Iterator[None]:
    layout, state = boot.running(driver.name)
    identity = targets.find(state, node)["instance_id"]
    set_link(layout, identity, up=False)
    try:
        yield
    finally:
        set_link(layout, identity, up=True)


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
            lambda: "controller-silent" in codes(quiet, host),
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
        told_by_all(quiet, WORKER, "drained-by-others", fault=False)
        assert "drain" in quiet.on("controller", f"sinfo -h -n {name} -o %T")
    finally:
        quiet.on("controller", f"scontrol update nodename={name} state=undrain")
