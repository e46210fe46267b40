"""A bundle to six machines under a job: paused, stopped by a node that fails, gone on with, undone; then no kit."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest
from driver import CONFIG, PROGRAM, Driver, steps, wait_until

from tests.rehearsal.jobs import SCRIPT, SMALL, finish, told, until_committed
from tests.rehearsal.test_nodes_leave import CONTROLLER_GROUP, HEAD, POLL, WORK, OwnCluster
from tests.support.slurm_guard import KIT

WORKERS = 5
STEPS = 1500
"""So many that the job is still at work when it is asked to save."""
ROOT, GO = "/fsx/trainer/rollout", "/fsx/trainer/rollout-go"
REFUSES = "/root/refuses-the-bundle"
HOLDS = "/root/holds-the-bundle"
CHECK = f"""#!/bin/bash
while [ -e {HOLDS} ]; do sleep 0.2; done
[ ! -e {REFUSES} ] || {{ echo 'this node refuses'; exit 1; }}
"""


@pytest.fixture
def driver(endpoint: Driver, tmp_path: Path) -> Iterator[Driver]:
    """A cluster of one controller and five workers."""
    values: Any = json.loads(CONFIG.read_text())
    kit = values["hyperpod_kit"]
    kit["cluster"]["name"] = "rollout"
    kit["failure_pause"] = 0
    kit["steps"] = {}
    for group in kit["cluster"]["instance_groups"]:
        if group["name"] == WORK:
            group["count"] = WORKERS
    config = tmp_path / "provisioning_parameters.json"
    config.write_text(json.dumps(values))
    made = OwnCluster(endpoint.name, endpoint.logs, config=config, environment=endpoint.environment)
    made.kit("upload", str(config))
    try:
        made.kit("create-cluster", str(config), "--wait", *POLL)
        yield made
    finally:
        made.kit("delete-cluster", str(config), "--yes", "--wait", *POLL, check=False)


def change_bundle(driver: Driver) -> None:
    """A script more, which a node may refuse."""
    (driver.config.parent / "check.sh").write_text(CHECK)
    values = json.loads(driver.config.read_text())
    values["hyperpod_kit"]["scripts"] = [{"name": "check", "path": "check.sh", "always": True, "when": "after-slurm"}]
    driver.config.write_text(json.dumps(values))
    driver.kit("upload", str(driver.config))


def roll(driver: Driver, command: str, *options: str) -> Tuple[int, str]:
    done = subprocess.run(
        [str(PROGRAM), "rollout", command, str(driver.config), "--yes", *options],
        env={**os.environ, **driver.environment},
        text=True,
        capture_output=True,
        timeout=600,
    )
    with open(driver.logs / "commands.log", "a") as log:
        log.write(f"$ rollout {command} {options}\n{done.stdout}{done.stderr}-> {done.returncode}\n")
    return done.returncode, done.stderr


def bundles(driver: Driver) -> List[str]:
    """What each node runs, the controller's first."""
    nodes = sorted(driver.nodes(), key=lambda node: (node["group"] != CONTROLLER_GROUP, node["address"]))
    return [driver.on(node["instance_id"], "readlink /opt/hyperpod-kit/current").strip() for node in nodes]


def paused_failed_and_gone_on_with(driver: Driver, job: str) -> str:
    """From the bundle that the cluster was made with to another one; the id of the first."""
    [old] = set(bundles(driver))
    change_bundle(driver)
    workers = sorted(
        (node for node in driver.nodes() if node["group"] == WORK),
        key=lambda node: [int(part) for part in node["address"].split(".")],
    )
    driver.on(workers[0]["instance_id"], f"touch {HOLDS}")
    ended: List[Tuple[int, str]] = []
    first = threading.Thread(target=lambda: ended.append(roll(driver, "start", "--batch", "2")))
    first.start()
    look = "systemctl is-active hyperpod-kit-rollout || :"
    wait_until("a node at work", lambda: driver.on(workers[0]["instance_id"], look).strip() == "active", timeout=180)
    driver.kit("rollout", "pause", str(driver.config))
    driver.on(workers[0]["instance_id"], f"rm {HOLDS}")
    first.join(600)
    [(code, words)] = ended
    assert code == 1 and "paused: 2 of 6 nodes" in words, words
    [new] = set(bundles(driver)) - {old}
    assert bundles(driver).count(new) == 2

    # One in the middle refuses it.
    driver.on(workers[3]["instance_id"], f"touch {REFUSES}")
    code, words = roll(driver, "resume", "--batch", "2")
    host = f"ip-{workers[3]['address'].replace('.', '-')}"
    assert code == 1 and f"{host} failed: script:check: " in words and f"it was put back to {old}" in words, words
    assert bundles(driver) == [old, new, new, new, old, old]
    status = subprocess.run(
        [str(PROGRAM), "rollout", "status", str(driver.config), "--json"],
        env={**os.environ, **driver.environment},
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert status.returncode == 1 and json.loads(status.stdout)["record"]["state"] == "stopped", status
    assert driver.job_state(job) == "RUNNING"

    driver.on(workers[3]["instance_id"], f"rm {REFUSES}")
    code, words = roll(driver, "start", "--batch", "5")
    assert code == 0 and "done: 6 of 6 nodes" in words and set(bundles(driver)) == {new}, words
    assert driver.data("validate-mounts", str(driver.config))["healthy"]
    return old


def without_the_kit(driver: Driver) -> None:
    """Slurm runs on, with the jobs that it knew."""
    nodes = [node["instance_id"] for node in driver.nodes() if node["group"] == WORK]
    too_early = driver.on(nodes[0], f"{KIT} node uninstall 2>&1; echo $?", check=False)
    assert "on the controller first" in too_early and too_early.strip().endswith("1"), too_early
    kept = driver.on(HEAD, "sbatch --parsable --hold --wrap true", user="trainer").strip()
    for node in (HEAD, *nodes):
        shown = driver.on(node, f"{KIT} node uninstall --dry-run")
        assert "files: " in shown and driver.on(node, "ls /opt/hyperpod-kit").strip(), shown
        done = driver.on(node, f"{KIT} node uninstall", timeout=400)
        assert "stays: users and groups" in done, done
        left = driver.on(
            node,
            "ls -d /opt/hyperpod-kit /var/lib/hyperpod-kit /etc/systemd/system/hyperpod-kit* "
            "/usr/local/bin/hyperpod-kit 2>/dev/null; findmnt -rn -o TARGET | grep -E '^/(fsx|efs|mnt)'",
            check=False,
        )
        assert not left.strip(), left
    assert driver.job_state(kept) == "PENDING", "the state is that of before"
    driver.on(HEAD, f"scontrol release {kept}")
    assert wait_until("an end", lambda: driver.job_state(kept) == "COMPLETED", timeout=120)
    hosts = driver.on(HEAD, f"srun -p train -N{WORKERS} --chdir / hostname", timeout=120).split()
    assert len(set(hosts)) == WORKERS


@pytest.mark.full  # six machines, each of them set up four times
def test_a_bundle_is_rolled_out_under_a_job_and_taken_back(driver: Driver) -> None:
    job = driver.submit(SCRIPT, str(STEPS), *SMALL, "--hold-at", "30", "--hold-until", GO, root=ROOT)
    until_committed(driver, job, ROOT, 2)
    old = paused_failed_and_gone_on_with(driver, job)
    code, words = roll(driver, "undo", "--batch", "5")
    assert code == 0 and "undone: 6 of 6 nodes" in words and set(bundles(driver)) == {old}, words
    assert driver.job_state(job) == "RUNNING"
    # Now it goes on, and is asked to save and to leave one of its nodes.
    host = driver.job_nodes(job)[0]
    driver.on(HEAD, f"touch {GO}", user="trainer")
    with told(driver, job):
        code, words = roll(driver, "start", "--requeue", "--node", host)
        assert code == 0 and f"job {job} of trainer: asked to save and to requeue itself" in words, words
    assert finish(driver, job, timeout=900) == "COMPLETED", driver.output(job)
    output = driver.output(job)
    totals = json.loads(driver.on(HEAD, f"{KIT} job status --root {ROOT} --json", user="trainer"))
    seen = steps(output)
    assert len(seen) == len(set(seen)) and seen[-1] == STEPS - 1, (seen, totals)
    assert totals["totals"]["lost"] == 0, totals
    assert totals["attempts"][-1]["code"] == 0 and len(totals["attempts"]) > 1, totals
    without_the_kit(driver)
