"""Nodes that hang, or are set up by the platform: what an admin sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List

import pytest
from driver import CONFIG, Driver, wait_until

from tests.support.wait import Deadline


@pytest.mark.full
def test_a_frozen_node_is_a_row_that_says_so(cluster: Driver) -> None:
    cluster.kit("rehearse", "freeze-node", "--name", cluster.name, "worker-group/1")
    deadline = Deadline(30)
    try:
        report = cluster.data("validate-mounts", str(CONFIG), check=False)
    finally:
        cluster.kit("rehearse", "freeze-node", "--name", cluster.name, "--thaw", "worker-group/1")
    assert not deadline.has_passed()
    silent = [found for found in report["nodes"] if found["error"]]
    assert not report["healthy"] and len(silent) == 1 and "does not respond" in silent[0]["error"], report
    wait_until("thawed node", lambda: cluster.data("validate-mounts", str(CONFIG), check=False)["healthy"], timeout=180)


def test_a_logout_leaves_the_memory_of_jobs_alone(cluster: Driver) -> None:
    """logind would remove all that its user has in /dev/shm, a running job's too."""
    node, kept = "worker-group/0", "/dev/shm/hpk-of-a-job"
    cluster.on(node, f"head -c 4096 /dev/zero > {kept} && loginctl show-session $XDG_SESSION_ID", user="trainer")
    try:
        wait_until(
            "logind has forgotten the user",
            lambda: "trainer" not in cluster.on(node, "loginctl list-users --no-legend"),
            timeout=60,
        )
        assert cluster.on(node, f"stat -c %s:%U {kept}") == "4096:trainer\n"
    finally:
        cluster.on(node, f"rm -f {kept}")


def mounted_at(driver: Driver, target: str, path: str) -> List[str]:
    return [line for line in driver.on(target, "cat /proc/mounts").splitlines() if line.split()[1] == path]


@pytest.mark.full  # a cluster of its own; what a node does in this mode is in tests/unit/node
def test_on_init_complete_adds_to_what_the_platform_set_up(endpoint: Driver, tmp_path: Path) -> None:
    values = json.loads(CONFIG.read_text())
    own = values["hyperpod_kit"]["cluster"]
    own.update(name="platform", lifecycle_mode="on_init_complete")
    own["instance_groups"][1]["count"] = 1
    values["hyperpod_kit"]["mounts"].append(
        {
            "kind": "openzfs",
            "name": "homes",
            "path": "/home",
            "dns_name": "fs-0123456789fedcba0.fsx.us-east-1.amazonaws.com",
        }
    )
    values["hyperpod_kit"]["health"] = {"interval": 5, "deadline": 2}
    config = tmp_path / "provisioning_parameters.json"
    config.write_text(json.dumps(values))
    endpoint.kit("upload", str(config))
    request = tmp_path / "request.json"
    request.write_text(endpoint.kit("create-cluster", str(config), "--dry-run", "--json"))
    endpoint.aws("sagemaker", "create-cluster", "--cli-input-json", f"file://{request}")
    try:
        endpoint.kit("wait", str(config), "--interval", "1", "--timeout", "150")
        assert endpoint.data("validate-mounts", str(config))["healthy"]
        listed = endpoint.data("list-cluster-nodes", str(config))["nodes"]
        found = {entry["group"]: entry["instance_id"] for entry in listed}
        for instance_id in found.values():
            for path in ("/fsx", "/home"):
                assert len(mounted_at(endpoint, instance_id, path)) == 1, "mounted by the platform, and not once more"
        head = found["controller-machine"]
        assert "prolog.sh" in endpoint.on(head, "scontrol show config | grep ^Prolog")
        seen = endpoint.on(head, "timeout 30 srun findmnt -n -o TARGET /mnt/data", user="trainer")
        assert seen.strip() == "/mnt/data"
        # A repair goes through the platform's own line of fstab: its options, and one mount.
        worker = found["worker-group"]
        before = mounted_at(endpoint, worker, "/fsx")
        endpoint.on(worker, "umount /fsx")
        wait_until("repair of /fsx", lambda: mounted_at(endpoint, worker, "/fsx"), timeout=180)
        assert mounted_at(endpoint, worker, "/fsx") == before
        assert "generator" in endpoint.on(worker, "systemctl show fsx.mount -P FragmentPath -P ActiveState")
    finally:
        endpoint.kit("delete-cluster", str(config), "--yes", "--wait", "--interval", "1", check=False)
