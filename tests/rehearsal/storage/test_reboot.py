"""A reboot, when HyperPod runs no lifecycle script: everything must come back from what is installed on the node."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from driver import Driver, wait_until

CONTROLLER, WORKER = "storage-controller/0", "storage-worker/0"
# Lines of a creation's steps; the health timer adds lines of its own.
STEPS = """grep -vc '"step": "mounts"' /var/log/provision/provisioning.log"""


def worker_of(driver: Driver) -> Dict[str, Any]:
    return next(node for node in driver.nodes() if node["group"] == "storage-worker")


@pytest.mark.full  # a minute of machines
def test_without_the_staging_directory_a_reboot_brings_everything_back(storage: Driver) -> None:
    instance = worker_of(storage)["instance_id"]
    look = f"{STEPS}; systemctl show -P UserspaceTimestamp"
    before = storage.on(WORKER, f"rm -rf /tmp/sagemaker-*; touch /fsx/kept /scratch/gone; {look}")
    lines, booted = before.splitlines()
    answer = storage.aws("sagemaker", "batch-reboot-cluster-nodes", "--cluster-name", "storage", "--node-ids", instance)
    assert answer["Successful"] == [instance]

    def is_back() -> bool:
        said = storage.on(WORKER, look, check=False)
        running = worker_of(storage)["status"] == "Running"
        return said.splitlines()[:1] == [lines] and booted not in said and running

    wait_until("reboot", is_back, timeout=180)
    wait_until(
        "mounts", lambda: storage.data("validate-mounts", str(storage.config), check=False)["healthy"], timeout=180
    )
    # The instance store was emptied, and is there with its directory all the same.
    assert storage.on(WORKER, "ls /fsx/kept /scratch/gone 2>/dev/null; stat -c %a /scratch", check=False).split() == [
        "/fsx/kept",
        "755",
    ]
    timers = storage.on(WORKER, "systemctl list-unit-files --no-legend 'hyperpod-kit*.timer' | cut -d' ' -f1").split()
    assert timers
    active = storage.on(WORKER, f"systemctl is-active slurmd munge {' '.join(timers)}", check=False).split()
    assert active == ["active"] * (len(timers) + 2)
    host = "ip-" + worker_of(storage)["address"].replace(".", "-")
    storage.on(CONTROLLER, f"timeout 30 srun -w {host} true", user="trainer")
    assert storage.on(WORKER, "ls -d /tmp/sagemaker-* 2>/dev/null || echo none").strip() == "none"
    assert storage.on(WORKER, STEPS).strip() == lines, "no lifecycle script has run"
