"""A cluster's whole life by the commands that its admin types, on machines: made, grown, given another bundle, a node
replaced, a script that fails and what is said of it, made whole again, deleted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Dict

from driver import CONFIG, PROGRAM, Driver

POLL = ("--interval", "1", "--timeout", "200")


class Admin:
    """Types commands about one configuration, in its directory."""

    def __init__(self, driver: Driver, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, **driver.environment}
        self.values: Dict[str, Any] = json.loads(CONFIG.read_text())
        own = self.values["hyperpod_kit"]
        own["cluster"].update(name="life", lifecycle_mode="on_init_complete", instance_groups=[
            {"name": "life-head", "instance_type": "ml.c5.xlarge", "count": 1},
            {"name": "life-work", "instance_type": "ml.c5.4xlarge", "count": 1}])
        self.values.update(controller_group="life-head",
                           worker_groups=[{"instance_group_name": "life-work", "partition_name": "train"}])
        own["failure_pause"] = 0
        self.write()

    @property
    def own(self) -> Dict[str, Any]:
        found: Dict[str, Any] = self.values["hyperpod_kit"]
        return found

    def write(self) -> None:
        (self.directory / "provisioning_parameters.json").write_text(json.dumps(self.values, indent=1))

    def types(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([str(PROGRAM), *words], cwd=self.directory, env=self.environment, capture_output=True,
                              text=True, timeout=240, stdin=subprocess.DEVNULL)
        assert done.returncode == code, f"{words} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def reads(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.types(*words, "--json", code=code).stdout)

    def bundle_of(self, place: str) -> str:
        """The bundle that a node runs, over `connect --ssh`."""
        return self.types("connect", place, "--ssh", "--", "readlink", "/opt/hyperpod-kit/current").stdout.strip()

    def worker_ids(self) -> Dict[str, str]:
        """Address -> instance id of the workers."""
        nodes = self.reads("list-cluster-nodes")["nodes"]
        return {node["address"]: node["instance_id"] for node in nodes if node["group"] == "life-work"}


def test_from_nothing_to_nothing(endpoint: Driver, tmp_path: Path) -> None:
    admin = Admin(endpoint, tmp_path)
    try:
        live(admin)
    finally:
        admin.types("delete-cluster", "--yes", "--wait", *POLL)
    assert "nothing to delete" in admin.types("delete-cluster", "--yes").stderr


def live(admin: Admin) -> None:
    first = admin.reads("upload")["bundle_id"]
    admin.types("create-cluster", "--wait", *POLL)
    assert admin.bundle_of("life-work/0") == first
    assert admin.types("events", code=2).stderr.startswith("error: AWS keeps no events of cluster life")

    # Scale up, and change the bundle: the count happens at once, the bundle on nodes that come from now on.
    admin.own["cluster"]["instance_groups"][1]["count"] = 2
    admin.own["health"]["interval"] = 20
    admin.write()
    second = admin.reads("upload")["bundle_id"]
    changes = {one["field"]: one["how"] for one in admin.reads("update-cluster", "--dry-run")["changes"]
               if one["where"] == "life-work"}
    assert changes == {"InstanceCount": "in place", "LifeCycleConfig": "new nodes only"}
    updated = admin.types("update-cluster", "--wait", *POLL)
    assert "cluster life is ready" in updated.stderr and "hyperpod-kit replace-node" in updated.stderr
    assert second != first and [admin.bundle_of(f"life-work/{index}") for index in (0, 1)] == [first, second]

    # The node with the old bundle is replaced: another instance in its place, with the new one.
    before = admin.worker_ids()
    admin.types("replace-node", "life-work/0", "--yes")
    admin.types("wait", *POLL)
    after = admin.worker_ids()
    assert set(before) == set(after) and len(set(before.values()) & set(after.values())) == 1
    assert admin.bundle_of("life-work/0") == second
    assert admin.reads("validate-mounts")["healthy"]

    # A mount that EFS refuses: growing fails with the script's words, and diagnose says which node, step and remedy.
    admin.own["mounts"].append({"kind": "efs", "name": "shared", "path": "/efs/shared", "tls": True,
                                "file_system_id": "fs-0123456789abcdef0", "access_point_id": "fsap-0000000000000dead"})
    admin.own["cluster"]["instance_groups"][1]["count"] = 3
    admin.write()
    admin.types("upload")
    refused = admin.types("update-cluster", "--wait", *POLL, code=1)
    assert "the change of cluster life failed: Lifecycle scripts did not run successfully" in refused.stderr
    told = admin.reads("diagnose", code=1)
    [sick] = [node for node in told["nodes"] if not node["healthy"]]
    assert sick["target"]["status"] == "Failure"
    assert [step["step"] for step in sick["failures"]] == ["mount:shared"], sick
    assert "efs-denied" in [known["code"] for known in sick["known"]]
    said = admin.types("diagnose", code=1).stdout
    assert "step mount:shared failed" in said and "do: elasticfilesystem:ClientMount" in said

    # The good configuration again: what failed is taken out, and comes back whole.
    admin.own["mounts"].pop()
    admin.own["cluster"]["instance_groups"][1]["count"] = 2
    admin.write()
    assert admin.reads("upload")["sent"] == 0
    admin.types("update-cluster", "--yes", "--wait", *POLL)
    assert len(admin.worker_ids()) == 2
    assert "nothing is wrong with them" in admin.types("diagnose").stderr
