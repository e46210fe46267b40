"""Nodes that go while jobs run, and a slurm.conf that has lost our lines, on machines."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Iterator, List, Optional

import pytest
from driver import CONFIG, PROGRAM, Driver, wait_until

from hyperpod_kit.model.units import GUARD_TIMER, GUARD_UNIT
from tests.rehearsal import jobs
from tests.support.slurm_guard import CONF, KIT, without_block

POLL = ("--interval", "1", "--timeout", "280")
CONTROLLER_GROUP, WORK = "controller-machine", "worker-group"
HEAD = f"{CONTROLLER_GROUP}/0"


class OwnCluster(Driver):
    """Names its controller by instance id: another cluster of the same rehearsal has groups of the same names."""

    def on(
        self, node: str, command: str, *, user: Optional[str] = None, check: bool = True, timeout: float = 180
    ) -> str:
        if node in ("controller", HEAD):
            [node] = [entry["instance_id"] for entry in self.nodes() if entry["group"] == CONTROLLER_GROUP]
        return super().on(node, command, user=user, check=check, timeout=timeout)


@pytest.fixture
def driver(endpoint: Driver, tmp_path: Path) -> Iterator[Driver]:
    """A cluster of one controller and two workers."""
    values: Any = json.loads(CONFIG.read_text())
    values["hyperpod_kit"]["cluster"]["name"] = "leave"
    values["hyperpod_kit"]["failure_pause"] = 0
    values["hyperpod_kit"]["steps"] = {}
    config = tmp_path / "provisioning_parameters.json"
    config.write_text(json.dumps(values))
    set_count(config, 2)
    made = OwnCluster(endpoint.name, endpoint.logs, config=config, environment=endpoint.environment)
    made.kit("upload", str(config))
    try:
        made.kit("create-cluster", str(config), "--wait", *POLL)
        made.on(HEAD, "install -d -o trainer -g trainer /fsx/trainer")
        yield made
    finally:
        made.kit("delete-cluster", str(config), "--yes", "--wait", *POLL, check=False)


def set_count(config: Path, count: int) -> None:
    values = json.loads(config.read_text())
    for group in values["hyperpod_kit"]["cluster"]["instance_groups"]:
        if group["name"] == WORK:
            group["count"] = count
    config.write_text(json.dumps(values))


def submitted(driver: Driver, *options: str) -> str:
    line = " ".join(
        [
            "sbatch --parsable --chdir /fsx/trainer -p train -N1 --exclusive -o /fsx/trainer/leave-%j.out",
            *options,
            "--wrap 'sleep 900'",
        ]
    )
    job = driver.on(HEAD, line, user="trainer").strip()
    with jobs.told(driver, job):
        wait_until("a running job", lambda: state(driver, job) == "RUNNING", timeout=180)
    return job


def state(driver: Driver, job: str) -> str:
    return driver.on(HEAD, f"squeue -h -t all -j {job} -o %T", check=False).strip()


def rewritten_without_our_lines(driver: Driver) -> None:
    """As HyperPod's agent may leave it; the place that the platform names leads to the same state."""
    first, second = submitted(driver), submitted(driver)
    # The guard of Slurm would put our lines back before `node apply` does.
    driver.on(HEAD, f"systemctl stop {GUARD_TIMER} {GUARD_UNIT}; {without_block(CONF)}; scontrol reconfigure")
    wait_until(
        "its own place",
        lambda: (
            "/var/spool/slurmctld" in driver.on(HEAD, "scontrol show config | grep ^StateSaveLocation", check=False)
        ),
        timeout=60,
    )
    driver.on(HEAD, f"scancel {first}", user="trainer")
    third = submitted(driver)
    report = driver.on(HEAD, f"{KIT} node apply")
    assert "failed" not in report
    driver.on(HEAD, f"systemctl start {GUARD_TIMER}")
    wait_until("slurmctld", lambda: state(driver, third) == "RUNNING", timeout=120)
    assert state(driver, second) == "RUNNING" and state(driver, first) in ("CANCELLED", "")
    fourth = driver.on(HEAD, "sbatch --parsable --chdir /fsx/trainer -p train --wrap true", user="trainer").strip()
    assert int(fourth) == int(third) + 1, "no number is given twice"
    assert driver.on(HEAD, f"{KIT} node plan").strip().endswith("changed=0")
    for job in (second, third, fourth):
        driver.on(HEAD, f"scancel {job}", user="trainer")
    wait_until("an empty queue", lambda: not driver.on(HEAD, "squeue -h").strip(), timeout=120)


def restarted_when_idle(driver: Driver) -> None:
    job = submitted(driver)
    host = driver.on(HEAD, f"squeue -h -j {job} -o %N").strip()
    address = host[len("ip-") :].replace("-", ".")
    done: List[str] = []
    restart = threading.Thread(
        target=lambda: done.append(
            driver.kit("reboot-node", str(driver.config), address, "--yes", "--when-idle", timeout=300)
        )
    )
    restart.start()
    wait_until(
        "the drain",
        lambda: "hyperpod-kit:leaving:reboot-node" in driver.on(HEAD, f"scontrol show node {host}"),
        timeout=120,
    )
    assert state(driver, job) == "RUNNING"
    driver.on(HEAD, f"scancel {job}", user="trainer")
    restart.join(300)
    assert len(done) == 1
    wait_until("two idle nodes", lambda: driver.on(HEAD, "sinfo -h -t idle -o %D").strip() == "2", timeout=180)


def fewer_with_a_job(driver: Driver) -> None:
    job = submitted(driver)
    host = driver.on(HEAD, f"squeue -h -j {job} -o %N").strip()
    busy = next(node for node in driver.nodes() if node["address"] == host[len("ip-") :].replace("-", "."))
    set_count(driver.config, 1)
    shown = driver.data("update-cluster", str(driver.config), "--dry-run")
    assert [found["id"] for found in shown["jobs"]] == [job] and shown["jobs"][0]["user"] == "trainer"
    driver.kit("update-cluster", str(driver.config), "--yes", "--when-idle", "--wait", *POLL)
    wait_until("one worker", lambda: len([node for node in driver.nodes() if node["group"] == WORK]) == 1, timeout=120)
    left = [node["instance_id"] for node in driver.nodes() if node["group"] == WORK]
    assert left == [busy["instance_id"]] and state(driver, job) == "RUNNING", "the idle one has gone"

    # And where each node has a job, it is waited for in vain, and the nodes take jobs again.
    late = subprocess.run(
        [str(PROGRAM), "replace-node", str(driver.config), f"{WORK}/0", "--yes", "--when-idle", "--drain-timeout", "5"],
        env={**os.environ, **driver.environment},
        text=True,
        capture_output=True,
        timeout=240,
    )
    assert late.returncode == 3 and f"{job} are still running" in late.stderr, late.stderr
    assert state(driver, job) == "RUNNING" and "DRAIN" not in driver.on(HEAD, f"scontrol show node {host}")


@pytest.mark.full  # machines that are made, restarted and taken away
def test_nodes_leave_with_their_jobs_looked_after(driver: Driver) -> None:
    rewritten_without_our_lines(driver)
    restarted_when_idle(driver)
    fewer_with_a_job(driver)
