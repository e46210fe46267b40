"""Links and directories that a user lays where root is about to make something, where everybody may write."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hyperpod_kit.config.load import load
from hyperpod_kit.config.validate import validate
from hyperpod_kit.model.mounts.efs import EfsMount
from tests.hostile.users import ROOT

CHECKOUT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--mount", "--propagation", "private"]
MAY = os.geteuid() == 0 and subprocess.run([*NAMESPACE, "true"], stderr=subprocess.PIPE).returncode == 0

BEGIN = """
import os, shutil, stat, subprocess, sys
from hyperpod_kit.errors import MountFailed
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.facts import NodeFacts
from hyperpod_kit.node.mounts import bring_up
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.node.machine.timing import Clock
from hyperpod_kit.run import LocalRunner

ATTACKER = 4001
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=True)
os.mkdir("/mnt/roots", 0o700)
with open("/mnt/roots/kept", "w") as file:
    file.write("root's own")
before = os.stat("/mnt/roots")

def as_attacker(work):
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([]); os.setgid(ATTACKER); os.setuid(ATTACKER)
            work()
        except OSError:
            pass
        os._exit(0)
    os.waitpid(pid, 0)

def untouched():
    now = os.stat("/mnt/roots")
    assert (now.st_uid, now.st_gid, now.st_mode) == (before.st_uid, before.st_gid, before.st_mode), oct(now.st_mode)
    assert os.listdir("/mnt/roots") == ["kept"], os.listdir("/mnt/roots")

def node_of(mount, runner):
    return Node(NodePaths(""), NodeConfig("demo", "on_create", {"g": "compute"}, (mount,)),
                NodeFacts("n", "10.0.0.1", "i-1", "g", "compute", "us-east-1", "aws", None), runner, Clock())
"""

SCRATCH = (
    BEGIN
    + """
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/opt"], check=True)
os.makedirs("/opt/dlami/nvme")
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0777", "tmpfs", "/opt/dlami/nvme"], check=True)
mount = NvmeMount("scratch", "/scratch", uid=4001, gid=4001, mode="0755")
node = node_of(mount, LocalRunner())
# The shelf, and what lies on it, as links to a directory of root's.
as_attacker(lambda: os.symlink("/mnt/roots", "/opt/dlami/nvme/hyperpod-kit"))
try:
    kind_of(mount).prepare(node, mount)
except MountFailed:
    untouched()
else:
    raise AssertionError("it took a link for its shelf")
os.unlink("/opt/dlami/nvme/hyperpod-kit")
as_attacker(lambda: os.mkdir("/opt/dlami/nvme/hyperpod-kit"))
as_attacker(lambda: os.symlink("/mnt/roots", "/opt/dlami/nvme/hyperpod-kit/scratch"))
try:
    kind_of(mount).prepare(node, mount)
except MountFailed:
    untouched()
else:
    raise AssertionError("it took a directory of another's for its shelf")
# A shelf of root's from before, with a link that was laid while everybody could.
os.chown("/opt/dlami/nvme/hyperpod-kit", 0, 0)
try:
    kind_of(mount).prepare(node, mount)
except MountFailed:
    untouched()
else:
    raise AssertionError("it followed a link")
os.unlink("/opt/dlami/nvme/hyperpod-kit/scratch")
kind_of(mount).prepare(node, mount)
found = os.stat("/opt/dlami/nvme/hyperpod-kit/scratch")
assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (4001, 0o755)
untouched()
print("all of it")
"""
)

HOMES = (
    BEGIN
    + """
base = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
os.makedirs(base + "/ubuntu/.ssh")
subprocess.run(["chown", "-R", "1000:1000", base + "/ubuntu"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", base], check=True)
bring_up.local_account_homes_in = lambda node, path: [bring_up.Home(base + "/ubuntu", 1000, 1000)]

class Racing(LocalRunner):
    "The attacker has his turn before each command of root's."
    def run(self, argv, **more):
        def lay():
            for name in [".ubuntu.n.partial", *(found for found in os.listdir(base) if "partial" in found)]:
                for place in (f"{base}/{name}", f"{base}/{name}/home"):
                    try:
                        os.symlink("/mnt/roots", place)
                    except OSError:
                        pass
        if argv[0] in ("cp", "chown", "rm", "find"):
            as_attacker(lay)
        return super().run(argv, **more)

mount = OpenZfsMount("homes", base, "fs-1")
os.chmod("/mnt/roots", 0o755)
before = os.stat("/mnt/roots")
assert bring_up.copy_homes_missing_on_mount(node_of(mount, Racing()), mount) == [base + "/ubuntu"]
untouched()
assert os.listdir(base + "/ubuntu") == [".ssh"] and os.stat(base + "/ubuntu").st_uid == 1000
print("all of it")
"""
)


def run(program: str, *words: str) -> None:
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", program, *words],
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HPK_ROOT": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.stdout.endswith("all of it\n"), done.stdout


@ROOT
@pytest.mark.needs("mounts")
def test_on_a_scratch_disk_that_is_everybodys() -> None:
    run(SCRATCH)


@ROOT
@pytest.mark.needs("mounts", "root-file-system")
def test_while_homes_are_carried_over(tmp_path: Path) -> None:
    place = tmp_path / "home"
    place.mkdir()
    run(HOMES, str(place))


@pytest.mark.parametrize(
    "changed",
    [
        {"region": "us-east-1,suid"},
        {"access_point_id": "fsap-0123456789abcdef0,dev"},
        {"path": "/efs -o suid"},
        {"file_system_id": "fs-0123456789abcdef0:/ -o suid"},
        {"name": "x\nExecStartPost=/bin/sh"},
    ],
)
def test_options_that_come_in_a_value_of_the_configuration(changed: dict[str, str]) -> None:
    """`nosuid,nodev` stand first among the options: a word behind them could take them back."""
    settings = load(CHECKOUT / "provisioning_parameters.example.json")
    written = tuple(
        one._replace(mount=replace(one.mount, **changed)) if isinstance(one.mount, EfsMount) else one  # type: ignore[arg-type]
        for one in settings.sourced_mounts
    )
    assert any(finding.severity == "error" for finding in validate(replace(settings, sourced_mounts=written)))
