"""A cluster's whole life by the commands that its admin types, on machines: made, grown, given another bundle, a node
replaced, a script that fails and what is said of it, made whole again, deleted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Dict

import pytest
from driver import CONFIG, PROGRAM, Driver

POLL = ("--interval", "1", "--timeout", "200")


class Admin:
    """Types commands about one configuration, in its directory."""

    def __init__(self, driver: Driver, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, **driver.environment}
        self.values: Dict[str, Any] = json.loads(CONFIG.read_text())
        own = self.values["hyperpod_kit"]
        own["cluster"].update(
            name="life",
            lifecycle_mode="on_init_complete",
            instance_groups=[
                {"name": "life-head", "instance_type": "ml.c5.xlarge", "count": 1},
                {"name": "life-work", "instance_type": "ml.c5.4xlarge", "count": 1},
            ],
        )
        self.values.update(
            controller_group="life-head",
            worker_groups=[{"instance_group_name": "life-work", "partition_name": "train"}],
        )
        own["failure_pause"] = 0
        own["scripts"] = [{"name": "banner", "path": "own", "run": "banner.sh", "arguments": ["hello"]}]
        (directory / "own").mkdir()
        script = '#!/bin/bash\nset -e\ncat text >/etc/banner\necho "$1 $HPK_ROLE" >>/etc/banner\n'
        (directory / "own/banner.sh").write_text(script)
        (directory / "own/text").write_text("Be kind.\n")
        self.write()

    @property
    def own(self) -> Dict[str, Any]:
        found: Dict[str, Any] = self.values["hyperpod_kit"]
        return found

    def write(self) -> None:
        (self.directory / "provisioning_parameters.json").write_text(json.dumps(self.values, indent=1))

    def runs(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAM), *words],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            stdin=subprocess.DEVNULL,
        )

    def types(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.runs(*words)
        assert done.returncode == code, f"{words} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def reads(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.types(*words, "--json", code=code).stdout)

    def workers(self) -> Dict[str, str]:
        """Instance id -> the bundle that it runs."""
        places = json.loads(self.runs("diff", "--json").stdout)["places"]
        return {
            place["where"].split()[0]: place["bundle_id"]
            for place in places
            if place["what"] == "node" and place["where"].endswith("(life-work)")
        }


@pytest.mark.full  # EFS's refusal is tried again for two minutes before the script gives up
def test_from_nothing_to_nothing(endpoint: Driver, tmp_path: Path) -> None:
    admin = Admin(endpoint, tmp_path)
    try:
        live(admin)
    finally:
        admin.types("delete-cluster", "--yes", "--wait", *POLL)


def live(admin: Admin) -> None:
    first = admin.reads("upload")["bundle_id"]
    admin.types("create-cluster", "--wait", *POLL)
    # Scale up, and change the bundle: the count changes at once, the bundle on nodes that come from now on.
    admin.own["cluster"]["instance_groups"][1]["count"] = 2
    admin.own["health"]["interval"] = 20
    admin.write()
    second = admin.reads("upload")["bundle_id"]
    changes = {
        one["field"]: one["how"]
        for one in admin.reads("update-cluster", "--wait", *POLL)["changes"]
        if one["where"] == "life-work"
    }
    assert changes == {"InstanceCount": "in place", "LifeCycleConfig": "new nodes only"}
    grown = admin.workers()
    assert second != first and sorted(grown.values()) == sorted([first, second])

    # The node with the old bundle is replaced: another instance in its place, with the new one.
    old = next(node for node, bundle in grown.items() if bundle == first)
    admin.types("replace-node", old, "--yes")
    admin.types("wait", *POLL)
    fresh = admin.workers()
    assert list(fresh.values()) == [second, second] and len(set(fresh) - set(grown)) == 1 and old not in fresh
    there = admin.types("connect", "life-work/0", "--ssh", "--", "readlink", "/opt/hyperpod-kit/current")
    assert there.stdout.strip() == second
    for node, role in (("life-work/0", "compute"), ("life-work/1", "compute"), ("life-head/0", "controller")):
        banner = admin.types("connect", node, "--ssh", "--", "cat", "/etc/banner")
        assert banner.stdout == f"Be kind.\nhello {role}\n", "the user's own script, on the new node too"

    # A script of one's own that fails: growing fails with its last words, and diagnose says which.
    admin.own["scripts"][0]["arguments"] = ["$(exit)"]
    (admin.directory / "own/banner.sh").write_text("#!/bin/bash\necho no space for banners >&2\nexit 7\n")
    admin.own["cluster"]["instance_groups"][1]["count"] = 3
    admin.write()
    admin.types("upload")
    admin.types("update-cluster", "--wait", *POLL, code=1)
    said = admin.types("diagnose", code=1).stdout
    assert "step script:banner failed" in said and "banner.sh exited 7: no space for banners" in said
    admin.own["scripts"].clear()
    admin.own["cluster"]["instance_groups"][1]["count"] = 2
    admin.write()
    admin.types("upload")
    admin.types("update-cluster", "--yes", "--wait", *POLL)

    # A mount that EFS refuses: growing fails with the script's words, and diagnose says which node, step and remedy.
    admin.own["mounts"].append(
        {
            "kind": "efs",
            "name": "shared",
            "path": "/efs/shared",
            "tls": True,
            "file_system_id": "fs-0123456789abcdef0",
            "access_point_id": "fsap-0000000000000dead",
        }
    )
    admin.own["cluster"]["instance_groups"][1]["count"] = 3
    admin.write()
    admin.types("upload")
    refused = admin.types("update-cluster", "--wait", *POLL, code=1)
    assert "the change of cluster life failed: Lifecycle scripts did not run successfully" in refused.stderr
    diagnosis = admin.types("diagnose", code=1)
    assert "step mount:shared failed" in diagnosis.stdout and "efs-denied" in diagnosis.stdout
    assert "do: elasticfilesystem:ClientMount" in diagnosis.stdout and "4 nodes: 1 unhealthy" in diagnosis.stderr

    # The good configuration again, whose bundle is still there: what failed is taken out, and all is well.
    admin.own["mounts"].pop()
    admin.own["cluster"]["instance_groups"][1]["count"] = 2
    admin.write()
    admin.types("update-cluster", "--yes", "--wait", *POLL)
    assert "no problems found" in admin.types("diagnose").stderr
