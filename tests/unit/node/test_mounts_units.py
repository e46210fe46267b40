"""The carrier unit of every kind: what comes before it, what it refers to, and that systemd takes it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hyperpod_kit.bundle.render import make_jinja_environment, render_template
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.kinds import KINDS
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.units import mount_unit_templates_and_names

FSX = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
MOUNTS: tuple[Mount, ...] = (
    EfsMount("home", "/efs", "fs-0123456789abcdef0"),
    S3FilesMount("files", "/files", "fs-0123456789abcdef1"),
    LustreMount("fsx", "/fsx", FSX, "abcdefgh"),
    LustreMount("fast", "/fast", FSX, "abcdefgh", efa=True),
    OpenZfsMount("homes", "/home", FSX),
    S3Mount("data", "/mnt/data", "bucket"),
    S3Mount("cached", "/mnt/cached", "bucket", cache_dir="/scratch/s3", cache_mib=1000),
    NvmeMount("scratch", "/scratch"),
    NvmeMount("scratch2", "/scratch2"),
)


def rendered() -> dict[str, str]:
    env = make_jinja_environment(Path(__file__).parents[3] / "templates")
    config = NodeConfig("demo", "on_create", {}, MOUNTS)
    return {
        mount.name: render_template(env, template, mount=mount, config=config).decode()
        for mount in MOUNTS
        for template, _ in mount_unit_templates_and_names(mount)
    }


def after(text: str) -> set[str]:
    return set(" ".join(re.findall(r"^After=(.*)$", text, re.MULTILINE)).split())


def test_every_kind_has_one() -> None:
    assert {mount.kind for mount in MOUNTS} == set(KINDS)
    assert all(len(mount_unit_templates_and_names(mount)) == 1 for mount in MOUNTS)


def test_what_comes_first() -> None:
    units = rendered()
    network = {"network-online.target", "remote-fs.target"}
    assert {name: after(units[name]) for name in ("home", "files", "fsx", "homes")} == dict.fromkeys(
        ("home", "files", "fsx", "homes"), network
    )
    assert after(units["fast"]) == network | {"configure-efa-fsx-lustre-client.service"}
    assert after(units["data"]) == {"network-online.target"}
    assert after(units["cached"]) == {"network-online.target", "hyperpod-kit-mount-scratch.service"}
    assert after(units["scratch"]) == {"local-fs.target", "dlami-nvme.service"}
    for text in units.values():
        assert "\nBefore=slurmd.service\n" in text and "\nWantedBy=multi-user.target\n" in text
        # Never give up, and never drag a job's node down: nothing Requires= a mount.
        assert "StartLimitIntervalSec=0" in text and "Requires" not in text and "BindsTo" not in text


def test_nothing_refers_to_where_the_bundle_was_downloaded_to() -> None:
    for text in rendered().values():
        programs = re.findall(r"^Exec\w+=-?(\S+)", text, re.MULTILINE)
        assert set(programs) <= {"/opt/hyperpod-kit/current/bin/hyperpod-kit", "/usr/bin/mount-s3"}
        assert "/tmp" not in text and "WorkingDirectory" not in text and "EnvironmentFile" not in text


@pytest.mark.needs("systemd-analyze")
def test_systemd_takes_them(tmp_path: Path) -> None:
    for mount in MOUNTS:
        text = rendered()[mount.name].replace("/opt/hyperpod-kit/current/bin/hyperpod-kit", "/bin/true")
        (tmp_path / mount_unit_templates_and_names(mount)[0][1]).write_text(
            text.replace("/usr/bin/mount-s3", "/bin/true")
        )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        text=True,
        timeout=60,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert [line for line in done.stdout.splitlines() if "hyperpod-kit" in line] == []
