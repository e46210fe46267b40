"""A mount over /home: what it would hide is carried over to it, really, in a mount namespace of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.node.mounts.bring_up import (
    copy_homes_missing_on_mount,
    homes_missing_on_mount,
    local_account_homes_in,
)

CHECKOUT = Path(__file__).parents[3]
FSX = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
HOME = OpenZfsMount("homes", "/home", FSX)
PASSWD = (
    "root:x:0:0::/root:/bin/bash\nslurm:x:401:401::/home/slurm:/bin/false\n"
    "ubuntu:x:1000:1000::/home/ubuntu:/bin/sh\ntrainer:x:2001:2001::/home/trainer:/bin/sh\nnobody:x:65534:65534::/home/nobody:/bin/false\n"
    "deep:x:2002:2002::/home/.homes/deep/home:/bin/sh\n"
)


def test_whose_homes_belong_there(make_node: Any) -> None:
    fake = make_node([HOME])
    (fake.root / "etc").mkdir()
    (fake.root / "etc/passwd").write_text(PASSWD)
    assert local_account_homes_in(fake.node, "/home") == [("/home/ubuntu", 1000, 1000), ("/home/trainer", 2001, 2001)]
    fake.runner.on("ls -A", out="trainer\nlost+found\n")
    assert homes_missing_on_mount(fake.node, HOME) == [("/home/ubuntu", 1000, 1000)]
    elsewhere = OpenZfsMount("data", "/data", FSX)
    before = len(fake.runner.calls)
    assert copy_homes_missing_on_mount(fake.node, elsewhere) == []
    assert fake.runner.calls[before:] == []
    assert homes_missing_on_mount(fake.node, OpenZfsMount("homes", "/home", FSX, platform=True)) == []


REAL = textwrap.dedent("""
    import os, subprocess, sys
    from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
    from hyperpod_kit.model.node_config import NodeConfig
    from hyperpod_kit.node.machine.context import Node
    from hyperpod_kit.node.machine.facts import NodeFacts
    from hyperpod_kit.node.mounts.bring_up import copy_homes_missing_on_mount
    from hyperpod_kit.node.machine.paths import NodePaths
    from hyperpod_kit.node.machine.timing import Clock
    from hyperpod_kit.run import LocalRunner

    base = sys.argv[1]  # on the root file system, as /home is on a node
    accounts = "".join(f"{name}:x:{uid}:{uid}::{base}/{name}:/bin/sh\\n"
                     for name, uid in (("ubuntu", 1000), ("first", 2001), ("none", 2002)))

    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    open("/run/passwd", "w").write(accounts)
    subprocess.run(["mount", "--bind", "/run/passwd", "/etc/passwd"], check=True)
    for name, uid in (("ubuntu", 1000), ("first", 2001)):
        os.makedirs(f"{base}/{name}/.ssh", 0o700)
        open(f"{base}/{name}/.ssh/authorized_keys", "w").write(f"key of {name} here")
        subprocess.run(["chown", "-R", f"{uid}:{uid}", f"{base}/{name}"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", base], check=True)
    os.makedirs(f"{base}/first")
    open(f"{base}/first/kept", "w").write("of an earlier node")
    mount = OpenZfsMount("homes", base, "fs-1")
    node = Node(NodePaths(""), NodeConfig("demo", "on_create", {"g": "compute"}, (mount,)),
                NodeFacts("n", "10.0.0.1", "i-1", "g", "compute", "us-east-1", "aws", None), LocalRunner(), Clock())
    assert copy_homes_missing_on_mount(node, mount) == [f"{base}/ubuntu", f"{base}/none"]
    found = os.stat(f"{base}/ubuntu/.ssh")
    assert (found.st_uid, found.st_gid, oct(found.st_mode & 0o777)) == (1000, 1000, "0o700")
    assert open(f"{base}/ubuntu/.ssh/authorized_keys").read() == "key of ubuntu here"
    assert os.listdir(f"{base}/first") == ["kept"]
    assert sorted(os.listdir(base)) == ["first", "none", "ubuntu"], os.listdir(base)
    new = os.stat(f"{base}/none")
    assert (new.st_uid, new.st_gid, oct(new.st_mode & 0o777)) == (2002, 2002, "0o700")
    assert copy_homes_missing_on_mount(node, mount) == []
    assert "beneath" not in open("/proc/self/mountinfo").read()
    print("all of it")
""")


@pytest.mark.needs("mounts", "root-file-system")
def test_really(tmp_path: Path) -> None:
    place = tmp_path / "home"
    place.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", REAL, str(place)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HPK_ROOT": ""},
        text=True,
        timeout=60,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.stdout.endswith("all of it\n"), done.stdout
