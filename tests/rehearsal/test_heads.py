"""Two controllers on machines: one dies, the other takes over with every job, and the one that died comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, List, Optional

import pytest
from driver import CONFIG, Driver, wait_until

from hyperpod_kit.model.units import GUARD_TIMER, GUARD_UNIT
from tests.rehearsal import jobs
from tests.support.slurm_guard import CONF, KIT, without_block

POLL = ("--interval", "1", "--timeout", "280")
HEADS = ("head/0", "head/1")
ROOT = "/fsx/trainer/heads"
QUEUED = "/fsx/trainer/queued-has-run"
OWN = "/var/spool/slurmctld"
"""Where the platform's slurm.conf has the state of slurmctld."""


class Heads(Driver):
    """`controller` means the second head, which is not the one that dies."""

    def on(
        self, node: str, command: str, *, user: Optional[str] = None, check: bool = True, timeout: float = 180
    ) -> str:
        return super().on(HEADS[1] if node == "controller" else node, command, user=user, check=check, timeout=timeout)


@pytest.fixture
def driver(endpoint: Driver, tmp_path: Path) -> Iterator[Heads]:
    values: Any = json.loads(CONFIG.read_text())
    own = values["hyperpod_kit"]
    own["cluster"].update(
        name="heads",
        # Only until the failover has been seen: a head is back in the rehearsal before AWS has noticed its loss.
        node_recovery="None",
        instance_groups=[
            {"name": "head", "instance_type": "ml.c5.xlarge", "count": 2},
            {"name": "work", "instance_type": "ml.c5.4xlarge", "count": 2},
        ],
    )
    values.update(
        controller_group="head",
        worker_groups=[{"instance_group_name": "work", "partition_name": "train"}],
        slurm_configurations={"slurm_shared_directory": "/fsx"},
    )
    own["steps"] = {"ssh_between_nodes": {}, "login_message": {}}
    own["failure_pause"] = 0
    config = tmp_path / "provisioning_parameters.json"
    config.write_text(json.dumps(values))
    made = Heads(endpoint.name, endpoint.logs, config=config, environment=endpoint.environment)
    made.kit("upload", str(config))
    try:
        made.kit("create-cluster", str(config), "--wait", *POLL)
        yield made
    finally:
        made.kit("delete-cluster", str(config), "--yes", "--wait", *POLL, check=False)


def pinged(driver: Heads) -> List[str]:
    """UP or DOWN of each controller, the primary first, as the second one says."""
    lines = driver.on(HEADS[1], "scontrol ping", check=False).splitlines()
    return [line.split()[-1] for line in lines if line.startswith("Slurmctld(")]


def same_on_both(driver: Heads) -> None:
    """What is ours in Slurm's configuration is on both, and Slurm's state is in one place."""
    files = "/opt/slurm/etc/slurm.conf /opt/slurm/etc/plugstack.conf"
    look = f"sha256sum {files}; readlink /opt/hyperpod-kit/current"
    one, two = (driver.on(head, look).split() for head in HEADS)
    assert one == two and len(one) == 5
    conf = driver.on(HEADS[0], "cat /opt/slurm/etc/slurm.conf")
    assert conf.count("SlurmctldHost=") == 2 and "StateSaveLocation=/fsx/.hyperpod-kit/heads-" in conf
    for head in HEADS:
        driver.on(head, "systemctl is-active slurmctld hyperpod-kit-slurm-state hyperpod-kit-sweep.timer")


def sweeps(driver: Heads) -> List[bool]:
    """Whether each head does what is done once."""
    return ["the sweep runs on" not in driver.on(head, f"{KIT} job sweep") for head in HEADS]


def both_up(driver: Heads) -> None:
    wait_until("both controllers", lambda: pinged(driver) == ["UP", "UP"], timeout=120)


def taken_over_by_hand(driver: Heads, job: str) -> None:
    """Slurm ends the first slurmctld for it, and systemd leaves one that has ended well alone; the bundle does not."""
    driver.on(HEADS[0], "systemctl kill --signal=KILL slurmctld")
    both_up(driver)
    driver.on(HEADS[1], "scontrol takeover")
    wait_until("the second one in control", lambda: driver.job_state(job) == "RUNNING", timeout=120)
    assert pinged(driver) == ["DOWN", "UP"] and sweeps(driver) == [False, True]
    driver.on(HEADS[0], f"{KIT} node apply")
    both_up(driver)
    assert driver.job_state(job) == "RUNNING"


def both_die(driver: Heads, job: str) -> None:
    """Nobody is left who knows the job but the directory on /fsx."""
    before = {node["instance_id"] for node in driver.nodes()}
    for head in HEADS:
        driver.kit("rehearse", "kill-node", "--name", driver.name, head)
    fresh = wait_until(
        "two new heads",
        lambda: [node for node in driver.nodes() if node["instance_id"] not in before and node["status"] == "Running"][
            1:
        ],
        timeout=280,
    )
    assert len(fresh) == 1
    both_up(driver)
    same_on_both(driver)
    assert driver.job_state(job) == "RUNNING", "its steps went on without any controller"


@pytest.mark.full
def test_a_newer_state_on_one_head(driver: Heads) -> None:
    """It replaces the shared one only while no other head's slurmctld works on that, and the command says how."""
    both_up(driver)
    for head in HEADS:
        # The guard of Slurm would put our lines back before `node apply` does.
        driver.on(head, f"systemctl stop {GUARD_TIMER} {GUARD_UNIT}")
    driver.on(HEADS[1], "systemctl stop slurmctld")
    driver.on(HEADS[0], "systemctl stop slurmctld")
    shared = driver.on(HEADS[0], f"sed -n 's/^StateSaveLocation=//p' {CONF} | tail -n 1").strip()
    driver.on(HEADS[0], f"rm -rf {OWN} && cp -a {shared} {OWN} && {without_block(CONF)} && systemctl start slurmctld")
    line = "sbatch --parsable --hold --chdir /tmp --output /dev/null --wrap true"
    held = wait_until("a job", lambda: driver.on(HEADS[0], line, user="trainer", check=False).strip(), timeout=120)
    driver.on(HEADS[1], "systemctl start slurmctld")
    both_up(driver)
    refused = driver.on(HEADS[0], f"{KIT} node apply 2>&1", check=False)
    assert "is not replaced with this machine's newer state while slurmctld runs on" in refused, refused
    assert "systemctl stop slurmctld; then" in refused, refused
    driver.on(HEADS[1], "systemctl stop slurmctld")
    for head in HEADS:
        driver.on(head, f"{KIT} node apply && systemctl start {GUARD_TIMER}")
    both_up(driver)
    same_on_both(driver)
    assert driver.job_state(held) == "PENDING", "Slurm went back in time"
    assert driver.on(HEADS[0], f"ls -d {shared}.kept-*").split(), "the older one is kept"
    driver.on(HEADS[1], f"scancel {held}")


@pytest.mark.full
def test_a_head_dies_and_the_other_takes_over_and_it_comes_back(driver: Heads) -> None:
    both_up(driver)
    same_on_both(driver)
    assert sweeps(driver) == [True, False]
    servers = driver.on("work/0", "systemctl show -p Environment slurmd")
    assert servers.count(".") >= 6 and "," in servers, "slurmd asks either of them"

    # On a quiet host it must outlast two machines' deaths; on a busy one it then takes its time.
    job = driver.submit(jobs.SCRIPT, "700", root=ROOT)
    jobs.until_committed(driver, job, ROOT, 1)
    before = {node["instance_id"] for node in driver.nodes()}
    driver.kit("rehearse", "kill-node", "--name", driver.name, HEADS[0])
    wait_until("the backup in control", lambda: driver.job_state(job), timeout=240, every=1)
    assert pinged(driver) == ["DOWN", "UP"] and driver.job_state(job) == "RUNNING"
    assert driver.on(HEADS[1], f"{KIT} job sweep") == "", "the one that is left does what is done once"
    # Slurm forgets a job five minutes after its end, long before the other one's: a file says that it has run.
    line = f"sbatch --parsable --chdir /fsx/trainer --output /dev/null --wrap 'hostname >> {QUEUED}'"
    queued = driver.on(HEADS[1], line, user="trainer").strip()

    # A worker dies too; then HyperPod replaces both, and each comes back by the bundle alone.
    driver.kit("rehearse", "kill-node", "--name", driver.name, "work/1")
    values = json.loads(driver.config.read_text())
    values["hyperpod_kit"]["cluster"]["node_recovery"] = "Automatic"
    driver.config.write_text(json.dumps(values))
    driver.kit("update-cluster", str(driver.config), "--yes", "--wait", *POLL)
    driver.kit("wait", str(driver.config), *POLL)
    fresh = {node["instance_id"] for node in driver.nodes()}
    assert len(fresh) == 4 and len(fresh - before) == 2
    assert jobs.finish(driver, job, timeout=1200) == "COMPLETED", driver.output(job)
    assert jobs.restored(driver.output(job))
    both_up(driver)
    same_on_both(driver)
    assert sweeps(driver) == [True, False]
    ran = wait_until("its file", lambda: driver.on(HEADS[1], f"cat {QUEUED}", check=False).split(), timeout=120)
    assert len(ran) == 1, f"job {queued}, which was submitted to the backup, ran once"
    # What is submitted now runs, by whichever is in control.
    again = driver.on(HEADS[0], "srun --nodes 2 --immediate=60 hostname", user="trainer").split()
    assert len(set(again)) == 2

    line = "sbatch --parsable -N2 -J held-for-long --chdir /fsx/trainer --wrap 'sleep 900'"
    held = driver.on(HEADS[1], line, user="trainer").strip()
    wait_until("a job on both workers", lambda: driver.job_state(held) == "RUNNING", timeout=120)
    # slurmctld writes its state some seconds after a change; what it has not written goes with it.
    written = "grep -l held-for-long /fsx/.hyperpod-kit/heads-*/slurmctld/job_state"
    wait_until("its record", lambda: driver.on(HEADS[1], written, check=False).strip(), timeout=60)
    taken_over_by_hand(driver, held)
    both_die(driver, held)
