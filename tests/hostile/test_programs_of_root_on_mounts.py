"""Who is root on a file system's server, or on another client of it, makes programs of root and device files there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.users import ATTACKER, ROOT, be, place

CHECKOUT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--mount", "--propagation", "private"]

pytestmark = [
    ROOT,
    pytest.mark.needs("mounts"),
]

BEGIN = """
import os, shutil, subprocess, sys
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.facts import NodeFacts
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.node.mounts.protect import find_unprotected, try_set_protective_flags
from hyperpod_kit.system.mountinfo import find_mount_at
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.node.machine.timing import Clock
from hyperpod_kit.run import LocalRunner

BASE, *BE = sys.argv[1:]

def node_of(*mounts):
    return Node(NodePaths(""), NodeConfig("demo", "on_create", {"g": "compute"}, mounts),
                NodeFacts("n", "10.0.0.1", "i-1", "g", "compute", "us-east-1", "aws", None), LocalRunner(), Clock())

def plant(path):
    "What the server's root leaves there."
    shutil.copy("/usr/bin/id", f"{path}/rootid")
    os.chown(f"{path}/rootid", 0, 0)
    os.chmod(f"{path}/rootid", 0o4755)
    os.mknod(f"{path}/zero", 0o20666, os.makedev(1, 5))
    os.chmod(f"{path}/zero", 0o666)

def who(path):
    return subprocess.run([*BE, f"{path}/rootid", "-u"], stdout=subprocess.PIPE, text=True, timeout=30).stdout.strip()

def device(path):
    return subprocess.run([*BE, "head", "-c1", f"{path}/zero"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=30).returncode == 0
"""

ON_WHAT_IS_THERE = (
    BEGIN
    + """
mount = LustreMount("fsx", BASE, "fs-1.fsx.us-east-1.amazonaws.com", "abcdefgh", platform=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "suid,dev,noatime,noexec", "tmpfs", BASE], check=True)
plant(BASE)
subprocess.run(["mount", "-o", "remount,bind,suid,dev,noatime,exec", BASE], check=True)
assert (who(BASE), device(BASE)) == ("0", True), "the attack itself works: " + who(BASE)
node = node_of(mount)
assert [found.missing_flags for found in find_unprotected(node) if found.path == BASE] == [("nosuid", "nodev")]
with open(f"{BASE}/open", "w") as held:
    assert try_set_protective_flags(node, mount)
    held.write("somebody works there")
assert (who(BASE), device(BASE)) == (BE[1].partition("=")[2], False), who(BASE)
flags = find_mount_at(read_text("/proc/self/mountinfo"), BASE).flags
assert {"nosuid", "nodev", "noatime"} <= set(flags) and "noexec" not in flags, flags
assert not try_set_protective_flags(node, mount)
assert not [found for found in find_unprotected(node) if found.path == BASE]
subprocess.run(["mount", "-o", "remount,bind,ro,noexec,suid,dev", BASE], check=True)
assert try_set_protective_flags(node, mount)
flags = find_mount_at(read_text("/proc/self/mountinfo"), BASE).flags
assert {"nosuid", "nodev", "noexec", "ro"} <= set(flags), flags
print("all of it")
"""
)

HELPER = """#!/bin/sh
# What a mount helper is handed: SOURCE PATH -o OPTIONS. What the kernel's own flags are among them, it passes on.
path=$2; shift 2
for word in $(echo "$@" | tr ', ' '\\n\\n'); do
  case $word in nosuid|nodev|suid|dev) flags=$flags,$word;; esac
done
exec mount -i -t tmpfs -o "rw$flags" tmpfs "$path"
"""

AS_IT_IS_MADE = (
    BEGIN
    + f"HELPER = {HELPER!r}\n"
    + """
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", BASE], check=True)
os.chmod(BASE, 0o755)
for name in ("upper", "work", "efs", "s3files", "lustre", "nfs"):
    os.mkdir(f"{BASE}/{name}")
for name in ("efs", "s3files", "lustre", "nfs"):
    with open(f"{BASE}/upper/mount.{name}", "w") as file:
        file.write(HELPER)
    os.chmod(f"{BASE}/upper/mount.{name}", 0o755)
sbin = os.path.realpath("/sbin")
subprocess.run(["mount", "-t", "overlay", "-o", f"lowerdir={sbin},upperdir={BASE}/upper,workdir={BASE}/work", "overlay",
                sbin], check=True)
FSX = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
mounts = (EfsMount("efs", f"{BASE}/efs", "fs-1", "fsap-1"), S3FilesMount("s3files", f"{BASE}/s3files", "fs-1"),
          LustreMount("lustre", f"{BASE}/lustre", FSX, "abcdefgh"), OpenZfsMount("zfs", f"{BASE}/nfs", FSX))
node = node_of(*mounts)
for mount in mounts:
    subprocess.run(kind_of(mount).mount_command(node, mount), check=True, timeout=30)
    plant(mount.path)
    assert (who(mount.path), device(mount.path)) == (BE[1].partition("=")[2], False), mount
    assert not try_set_protective_flags(node, mount)
print("all of it")
"""
)


def run(program: str) -> None:
    with place(0o755) as directory:
        # Beneath the namespace's own mounts this directory stays empty, whatever becomes of the program.
        done = subprocess.run(
            [*NAMESPACE, sys.executable, "-c", program, str(directory), *be(ATTACKER)],
            text=True,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HPK_ROOT": ""},
            timeout=120,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    assert done.stdout.endswith("all of it\n"), done.stdout


def test_on_a_mount_that_is_there_without_the_flags_and_in_use() -> None:
    """HyperPod's own, or one that the release before made."""
    run(ON_WHAT_IS_THERE)


def test_on_every_kind_as_it_is_made() -> None:
    """The very commands, through mount(8), to a helper that hands the kernel's flags to the kernel."""
    run(AS_IT_IS_MADE)
