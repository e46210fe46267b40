"""What AWS's base scripts do about clients, and this must not: each test fails on that behaviour.

mount-s3.sh downloads the newest x86_64 build from the internet at every boot, unpinned and unverified;
lifecycle_script.py downloads with pip, apt and from GitHub before the first mount, so that a node without internet, or
with a slow one, has no mounts.
"""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, List

import pytest

from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.load import load
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.clients import apt, install
from hyperpod_kit.node.clients import install as clients
from hyperpod_kit.node.clients.decide import Install, Machine, Missing, decide
from hyperpod_kit.node.clients.installed import InstalledClient
from hyperpod_kit.node.clients.required import required_clients
from hyperpod_kit.node.creation.apply import apply
from hyperpod_kit.node.creation.plan import plan
from hyperpod_kit.node.creation.steps import STEPS
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import MountStep, StepOutcome
from tests.unit.node.clients.debian_root import DebianRoot
from tests.unit.node.clients.package_server import PackageServer

EXAMPLE = Path(__file__).parents[4] / "provisioning_parameters.example.json"
HOME = EfsMount("home", "/efs", "fs-0123456789abcdef0")
DATA = S3Mount("data", "/mnt/data", "bucket")


def test_nothing_is_downloaded_or_installed_at_a_boot() -> None:
    units = {place: data.decode() for place, data in render(load(EXAMPLE)).files.items() if place.startswith("units/")}
    assert units
    for place, text in units.items():
        started = " ".join(line for line in text.splitlines() if line.startswith("Exec"))
        assert not re.search(r"curl|wget|http|apt|dpkg|pip|latest", started), place


@pytest.mark.parametrize("arch", ["x86_64", "arm64"])
def test_each_architecture_gets_its_own_package_and_never_another_ones(debian: DebianRoot, arch: str) -> None:
    names = {"x86_64": "amd64", "arm64": "arm64"}
    packages = [debian.listed(debian.deb("mount-s3", "1.22.0", arch=name)) for name in names.values()]
    want, gone = required_clients([DATA])[0], InstalledClient("/usr/bin/mount-s3 is not there")
    decision = decide(want, gone, packages, Machine(names[arch], "6.8.0-1063-aws"))
    assert isinstance(decision, Install) and [package.arch for package in decision.packages] == [arch]
    others = [package for package in packages if package.arch != arch]
    assert isinstance(decide(want, gone, others, Machine(names[arch], "6.8.0-1063-aws")), Missing)


def test_with_good_clients_no_network_and_no_package_manager_is_touched(
    debian: DebianRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for place in ("usr/bin/mount-s3", "usr/sbin/mount.efs"):
        path = debian.root / place
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\necho 9.9.9\n")
        path.chmod(0o755)
    [step] = [
        step
        for step in plan(STEPS, NodeConfig("demo", "on_create", {}), "compute", "g", "on_create")
        if step.name == "clients"
    ]
    node = debian.node([HOME, DATA])
    assert step.run(node).changed is False
    assert debian.calls == []


def test_a_download_that_fails_does_not_keep_the_other_mounts_from_being_made(
    debian: DebianRoot, server: PackageServer
) -> None:
    made: List[str] = []

    def make(_: Node, name: str) -> StepOutcome:
        made.append(name)
        return StepOutcome(True)

    steps = [
        replace(step, run=make) if isinstance(step, MountStep) else step
        for step in STEPS
        if isinstance(step, MountStep) or step == clients.STEP
    ]
    gone = debian.listed(debian.deb("mount-s3", "1.22.0"), url=server.offer("/x", b"") + "/mount-s3.deb")
    node = debian.node([DATA, HOME], [gone])
    said: List[Any] = []
    status = apply(node, plan(steps, node.config, "compute", "g", "on_create"), "on_create", said.append)
    assert status["ok"] is False
    assert made == ["data", "home"]
    assert any("clients: failed" in line and "HTTP 404" in line for line in said)


def test_what_clients_may_cost_is_far_below_what_the_whole_creation_may() -> None:
    script = (EXAMPLE.parent / "lifecycle_scripts/on_create.sh").read_text()
    total = re.search(r"TOTAL_SECONDS=(\d+)", script)
    assert total is not None
    one = install.DOWNLOAD_SECONDS + apt.LOCK_SECONDS + apt.INSTALL_SECONDS
    assert one < int(total.group(1))


def test_python_packages_are_installed_into_the_training_environment_alone() -> None:
    for place, data in render(load(EXAMPLE)).installed_files.items():
        if place == "lib/hyperpod_kit/node/environments/maker.py":
            continue
        if place.endswith(".sh") or place.startswith(("lib/hyperpod_kit/node/", "lib/hyperpod_kit/slurm/")):
            assert not re.search(rb"\bpip3?\b.*\binstall\b|ensurepip|ansible|git clone|github\.com", data), place
