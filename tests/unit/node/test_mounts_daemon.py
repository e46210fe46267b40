"""What surrounds a Mountpoint daemon: its cache, its restarts; and mounts that are full."""

from __future__ import annotations

import contextlib
import stat
import subprocess
from typing import Any

import pytest

from hyperpod_kit.errors import MountFailed
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.node.commands.mount_commands import ACTIONS
from hyperpod_kit.node.mounts.bring_up import start_unit_protect_and_copy_homes
from hyperpod_kit.node.mounts.ensure import ensure_mounted
from hyperpod_kit.node.observe.check import check_mount

CACHED = S3Mount("data", "/mnt/data", "bucket", cache_dir="/scratch/s3", cache_mib=100)
SCRATCH = NvmeMount("scratch", "/scratch")
UNIT = "hyperpod-kit-s3-data.service"


def test_the_cache_is_its_own_and_nobody_elses_to_read(make_node: Any) -> None:
    fake = make_node([CACHED, SCRATCH])
    with pytest.raises(MountFailed, match="the scratch scratch that holds the cache is not mounted"):
        ACTIONS["prepare"](fake.node, "data")
    assert not (fake.root / "scratch").exists()  # nothing of it on the root disk
    fake.mounted("/scratch", "ext4", "/dev/nvme1n1")
    ACTIONS["prepare"](fake.node, "data")
    assert stat.S_IMODE((fake.root / "scratch/s3/data").stat().st_mode) == 0o700
    assert ("cache", "/scratch/s3/data") in CACHED.options()


def test_a_daemon_that_cannot_start_is_tried_for_ever_and_ever_slower(make_node: Any) -> None:
    fake = make_node([S3Mount("data", "/mnt/data", "bucket")])
    for _ in range(10):
        ACTIONS["prepare"](fake.node, "data")  # ExecStartPre; then mount-s3 says that it may not
        ACTIONS["clear"](fake.node, "data")  # ExecStopPost
    assert [round(pause) for pause in fake.clock.slept] == [0, 0, 0, 1, 2, 4, 8, 10, 10, 10]
    fake.mounted("/mnt/data", "fuse", "mountpoint-s3")
    fake.serve_s3(UNIT, ["mount-s3", "bucket", "/mnt/data"])
    ACTIONS["await"](fake.node, "data")
    fake.unmounted("/mnt/data")  # it served, and was killed: back at once
    ACTIONS["clear"](fake.node, "data")
    assert fake.clock.slept[-1] == 0


@pytest.mark.needs("mounts")
def test_a_full_file_system_is_mounted_all_the_same(make_node: Any) -> None:
    mount = EfsMount("home", "/efs", "fs-0123456789abcdef0")
    fake = make_node([mount])
    place = fake.root / "efs"

    def made() -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
        with contextlib.suppress(OSError), open(place / "all of it", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        fake.mounted("/efs", "nfs4", "127.0.0.1:/")

    fake.runner.on("mount -t efs", do=made)
    try:
        assert ensure_mounted(fake.node, mount) is True and ensure_mounted(fake.node, mount) is False
        assert check_mount(fake.node, mount).state == "full"
        assert start_unit_protect_and_copy_homes(fake.node, mount) == (False, "fs-0123456789abcdef0:/; no space left")
    finally:
        subprocess.run(["umount", str(place)], check=True)
