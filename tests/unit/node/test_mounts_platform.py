"""FSx mounts of HyperPod's own: waited for, started through its own unit, checked, and never mounted a second time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hyperpod_kit.errors import MountFailed
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.node.mounts.ensure import ensure_mounted
from hyperpod_kit.node.mounts.kinds.mount_record import read_record

FSX = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
LUSTRE = LustreMount("fsx", "/data/fsx-1", FSX, "abcdefgh", platform=True)
ZFS = OpenZfsMount("homes", "/home", FSX, platform=True)
UNIT = r"data-fsx\x2d1.mount"


def commands(fake: Any) -> list[str]:
    """What changed anything."""
    asking = ("systemctl show", "systemctl is-", "journalctl")
    return [call for call in fake.runner.calls if not call.startswith(asking)]


def test_what_hyperpod_has_mounted_is_left_alone(make_node: Any) -> None:
    fake = make_node([LUSTRE, ZFS])
    fake.mounted(LUSTRE.path, "lustre", "10.0.0.1@tcp:/abcdefgh")
    fake.mounted("/home", "nfs4", f"{FSX}:/fsx")
    assert ensure_mounted(fake.node, LUSTRE) is False and ensure_mounted(fake.node, ZFS) is False
    assert commands(fake) == [] and read_record(fake.node, LUSTRE) is None


def test_what_hyperpod_wrote_down_is_started_through_its_own_unit(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted(LUSTRE.path, "autofs", "systemd-1")  # an automount that nobody has touched since boot
    fake.runner.on(f"systemctl show --property FragmentPath {UNIT}", out="FragmentPath=/run/systemd/generator/x\n")
    fake.runner.on(f"systemctl start {UNIT}", do=lambda: fake.mounted(LUSTRE.path, "lustre", "10.0.0.1@tcp:/abcdefgh"))
    assert ensure_mounted(fake.node, LUSTRE) is True
    assert commands(fake) == [f"systemctl start {UNIT}"]


def test_what_hyperpod_mounts_late_is_waited_for_and_never_made(make_node: Any) -> None:
    fake = make_node([ZFS])
    sleep = fake.clock.sleep

    def later(seconds: float) -> None:
        sleep(seconds)
        if sum(fake.clock.slept) > 60 and not fake.table:
            fake.mounted("/home", "nfs4", f"{FSX}:/fsx")

    fake.clock.sleep = later
    assert ensure_mounted(fake.node, ZFS) is True
    assert commands(fake) == []


@pytest.mark.parametrize(
    "mount, there, said",
    [
        (LUSTRE, None, "HyperPod has not mounted /data/fsx-1 after 120 s"),
        (ZFS, ("ext4", "/dev/sda1"), "/home is wrong_target"),
    ],
)
def test_what_hyperpod_has_not_mounted_or_mounted_wrong_is_said(
    make_node: Any, mount: Any, there: Any, said: str
) -> None:
    fake = make_node([mount])
    if there:
        fake.mounted(mount.path, *there)
    with pytest.raises(MountFailed, match=said):
        ensure_mounted(fake.node, mount)
    assert commands(fake) == [] and sum(fake.clock.slept) <= 121


def test_the_words_of_hyperpods_unit_are_passed_on(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.runner.on(f"systemctl show --property FragmentPath {UNIT}", out="FragmentPath=/run/systemd/generator/x\n")
    fake.runner.on(f"systemctl start {UNIT}", 1)
    fake.runner.on("journalctl", out='{"SYSLOG_IDENTIFIER": "mount", "MESSAGE": "mount.lustre: no such device"}\n')
    with pytest.raises(MountFailed, match=r"mount\.lustre: no such device"):
        ensure_mounted(fake.node, LUSTRE)


def test_in_on_create_mode_the_same_mount_is_ours(make_node: Any) -> None:
    ours = replace(LUSTRE, platform=False)
    fake = make_node([ours])
    fake.runner.on("mount -t lustre", do=lambda: fake.mounted(ours.path, "lustre", "10.0.0.1@tcp:/abcdefgh"))
    assert ensure_mounted(fake.node, ours) is True
    assert commands(fake) == [f"mount -t lustre -o nosuid,nodev,noatime,flock {FSX}@tcp:/abcdefgh {ours.path}"]
    assert read_record(fake.node, ours) is not None


def test_a_mount_whose_maker_was_killed_is_noted_by_the_next_run(make_node: Any) -> None:
    ours = replace(LUSTRE, platform=False)
    fake = make_node([ours])
    fake.mounted(ours.path, "lustre", "10.0.0.1@tcp:/abcdefgh")
    assert ensure_mounted(fake.node, ours) is False
    assert read_record(fake.node, ours) is not None
