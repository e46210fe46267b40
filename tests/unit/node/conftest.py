"""A node under a temporary root: a real bundle, the real scripts, recorded commands."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest

from hyperpod_kit.bundle.render import Bundle, render, replace_bundle_directory
from hyperpod_kit.config import load
from hyperpod_kit.config.settings.sourced import SourcedMount
from hyperpod_kit.node.packets import packet_rules
from hyperpod_kit.system import fullness
from tests.support import serving_fuse, silent_fuse
from tests.support.installed_bundle import install
from tests.unit.node import fakes, swept

CHECKOUT = Path(__file__).parents[3]
PROGRAMS = (
    "systemctl",
    "mount",
    "umount",
    "useradd",
    "groupadd",
    "getent",
    "journalctl",
    "cc",
    "dpkg",
    "dpkg-query",
    "dpkg-deb",
    "apt-get",
    "apt-mark",
    "modinfo",
)
SHIM = f"""#!/usr/bin/python3 -IS
import sys
sys.path.append({str(Path(__file__).parent)!r})
import recorder
recorder.main()
"""
"""Imported, so that a hundred calls compile recorder.py once."""
CONTROLLER, WORKER = "10.1.0.10", "10.1.0.20"


@dataclass
class Sandbox:
    """One node below `root`; `staging` is where HyperPod downloaded the bundle to."""

    root: Path
    staging: Path
    bundle: Bundle
    address: str

    def environment(self, **more: str) -> Dict[str, str]:
        return {
            "PATH": f"{self.root}/shims:{os.environ['PATH']}",
            "HPK_ROOT": str(self.root),
            "HPK_NODE_ADDRESS": self.address,
            **more,
        }

    def run(self, argv: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(argv),
            env=self.environment(**more),
            cwd=self.staging,
            text=True,
            timeout=180,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def on_create(self, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(["/bin/bash", str(self.staging / "on_create.sh")], **more)

    def node(self, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run([f"{self.root}/opt/hyperpod-kit/current/bin/hyperpod-kit", "node", *args], **more)

    @property
    def log(self) -> List[Dict[str, Any]]:
        """The JSON lines of provisioning.log."""
        lines = (self.root / "var/log/provision/provisioning.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    @property
    def calls(self) -> List[str]:
        return (self.root / "recorder/calls").read_text().splitlines()

    def install(self) -> Path:
        """The bundle as on_create.sh hands it over to the program: installed, nothing done yet; the node's root."""
        home = self.root / "opt/hyperpod-kit"
        home.mkdir()
        install(self.bundle, home / self.bundle.bundle_id)
        (home / "current").symlink_to(self.bundle.bundle_id)
        return self.root

    def mountinfo(self) -> str:
        return (self.root / "proc/self/mountinfo").read_text()


def example_bundle(**changes: Any) -> Bundle:
    """The bundle of the example configuration; `changes` overrule keys under `hyperpod_kit`."""
    settings = load.load(CHECKOUT / "provisioning_parameters.example.json")
    if "mounts" in changes:
        changes["sourced_mounts"] = tuple(SourcedMount(mount, "") for mount in changes.pop("mounts"))
    return render(replace(settings, **{"failure_pause": 0.0, **changes}))


@pytest.fixture(autouse=True)
def _empty_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests look at lies on this machine's own disk, which may be nearly full."""
    monkeypatch.setattr(fullness, "UP", 2.0)


@pytest.fixture
def full_at_80(monkeypatch: pytest.MonkeyPatch, _empty_disk: None) -> None:
    """The limit as it is, for those that fill a file system of their own."""
    monkeypatch.setattr(fullness, "UP", 0.80)


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    return example_bundle()


@pytest.fixture
def silent_mount() -> Any:
    """`with silent_mount(path) as handle`: a FUSE mount that hangs, and is dead once the handle is closed."""
    return silent_fuse.silent_mount


@pytest.fixture(scope="session")
def render_example() -> Any:
    """`render_example(mounts=..., ...)` -> Bundle of the example with other values."""
    return example_bundle


@pytest.fixture
def sweeping() -> Any:
    """`create(root, address, kill_at)` and `end_state(root)`: a creation that is killed before its n-th effect."""
    return swept


@pytest.fixture
def serving_mount() -> Any:
    """`with serving_mount(path) as daemon`: a FUSE mount whose daemon is a process of its own."""
    return serving_fuse.serving_mount


@pytest.fixture
def make_node(tmp_path: Path) -> Any:
    """`make_node(mounts, users=(), role="compute")` -> a FakeNode: scripted commands, a clock that does not wait."""

    def make(*args: Any, **kwargs: Any) -> Any:
        return fakes.FakeNode(tmp_path / "node", *args, **kwargs)

    return make


@pytest.fixture
def make_sandbox(tmp_path: Path, bundle: Bundle) -> Any:
    """`make_sandbox(role, bundle)` -> Sandbox of a fresh node; by default with the example's bundle."""
    example = bundle

    def make(role: str = "compute", bundle: Bundle = example) -> Sandbox:
        root = tmp_path / "root"
        staging = tmp_path / "tmp" / bundle.bucket / bundle.prefix
        replace_bundle_directory(bundle, staging)
        for path in (
            "shims",
            "proc/self",
            "proc/sys/kernel",
            "opt/ml/config",
            "opt/slurm/bin",
            "etc",
            "recorder",
            "usr/include/slurm",
        ):
            (root / path).mkdir(parents=True)
        (root / "shims/recorder").write_text(SHIM)
        (root / "shims/recorder").chmod(0o755)
        for program in PROGRAMS:
            (root / "shims" / program).symlink_to("recorder")
        (root / "opt/slurm/bin/scontrol").symlink_to(root / "shims/recorder")
        (root / "usr/include/slurm/spank.h").write_text("")
        for client in ("usr/bin/mount-s3", "usr/sbin/mount.efs", "usr/sbin/mount.lustre"):
            (root / client).parent.mkdir(parents=True, exist_ok=True)
            (root / client).symlink_to(root / "shims/recorder")
        (root / "sys/module/lustre").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text("")
        (root / "proc/sys/kernel/hostname").write_text("ip-10-1-0-20\n")
        for database in ("passwd", "group"):
            (root / "etc" / database).write_text("root:x:0:0::/root:/bin/bash\n")
        (root / "etc/fuse.conf").write_text("#user_allow_other\n")
        if role == "controller":
            (root / "opt/slurm/etc").mkdir()
            (root / "opt/slurm/etc/slurm.conf").write_text("ClusterName=demo\nPrologFlags=Contain\n")
        (root / "opt/ml/config/resource_config.json").write_text(
            json.dumps(
                {
                    "ClusterType": "Slurm",
                    "ClusterConfig": {
                        "ClusterArn": "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcde1234567",
                        "ClusterName": "demo",
                    },
                    "InstanceGroups": [
                        {
                            "Name": "controller-machine",
                            "Instances": [{"InstanceId": "i-0c", "CustomerIpAddress": CONTROLLER}],
                        },
                        {"Name": "worker-group", "Instances": [{"InstanceId": "i-0w", "CustomerIpAddress": WORKER}]},
                    ],
                }
            )
        )
        return Sandbox(root, staging, bundle, CONTROLLER if role == "controller" else WORKER)

    return make


@pytest.fixture
def no_packet_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rules of the packet filter add to a check: test_packet_rules.py and tests/hostile."""
    monkeypatch.setattr(packet_rules, "restore_rules", lambda node: packet_rules.RulesState())
