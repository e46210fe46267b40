"""nosuid and nodev: what is found, what is set, what is said. That they bite: tests/hostile."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.node.commands.mount_commands import check_mounts_or_run_action_command
from hyperpod_kit.node.health import check_cycle
from hyperpod_kit.node.health.warnings import warning_lines_about_node
from hyperpod_kit.node.mounts import bring_up, protect
from hyperpod_kit.node.mounts.kinds.mount_record import record_current_mount_as_kits

FSX = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
LUSTRE = LustreMount("fsx", "/fsx", FSX, "abcdefgh", platform=True)
SOURCE = "10.0.0.1@tcp:/abcdefgh"


def test_a_mount_of_hyperpods_gets_them_and_keeps_its_own_flags(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", SOURCE, "rw,flock", flags="rw,noatime")
    assert protect.missing_protective_flags(fake.node, LUSTRE) == ("nosuid", "nodev")
    assert protect.try_set_protective_flags(fake.node, LUSTRE)
    assert fake.runner.calls == ["mount -o remount,bind,rw,noatime,nosuid,nodev /fsx"]


def test_options_of_the_file_system_are_no_flags(make_node: Any) -> None:
    """A server, or who starts a FUSE daemon, chooses what stands behind the dash."""
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", SOURCE, "rw,nosuid,nodev", flags="rw")
    assert [found.missing_flags for found in protect.find_unprotected(fake.node)] == [("nosuid", "nodev")]


def test_where_the_configuration_says_so_they_are_not_set(make_node: Any) -> None:
    fake = make_node([replace(LUSTRE, suid_and_devices=True)])
    fake.mounted("/fsx", "lustre", SOURCE, flags="rw")
    assert (
        not protect.try_set_protective_flags(fake.node, fake.node.mount("fsx"))
        and warning_lines_about_node(fake.node) == []
    )


def test_flags_that_cannot_be_set_are_said_at_every_look(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", SOURCE, flags="rw,nosuid")
    fake.runner.on("mount -o remount", code=32)
    assert not protect.try_set_protective_flags(fake.node, LUSTRE)
    [said] = warning_lines_about_node(fake.node)
    assert "/fsx (lustre from 10.0.0.1@tcp:/abcdefgh) is mounted without nodev" in said and "node apply" in said
    line = check_cycle.make_mounts_report(fake.node, {}, 0.0, warning_lines_about_node(fake.node))
    assert line["warnings"] == [said]


@pytest.mark.parametrize(
    ("kind", "foreign"),
    [
        ("nfs4", True),
        ("nfs", True),
        ("lustre", True),
        ("fuse", True),
        ("fuse.sshfs", True),
        ("cifs", True),
        ("ext4", False),
        ("xfs", False),
        ("tmpfs", False),
        ("overlay", False),
        ("fusectl", False),
        ("autofs", False),
    ],
)
def test_what_neither_we_nor_the_configuration_know_is_a_warning_with_the_way_out(
    make_node: Any, kind: str, foreign: bool
) -> None:
    fake = make_node([])
    fake.mounted("/theirs", kind, "server:/x", flags="rw,relatime")
    said = warning_lines_about_node(fake.node)
    assert len(said) == foreign
    if foreign:
        assert "/theirs" in said[0] and "mount -o remount,bind,nosuid,nodev /theirs" in said[0]
    assert fake.runner.calls == [], "what is somebody else's is not touched"


def test_only_what_a_process_sees_at_a_place_counts(make_node: Any) -> None:
    fake = make_node([])
    fake.mounted("/theirs", "nfs4", "server:/x", flags="rw")
    fake.mounted("/theirs", "nfs4", "server:/y", flags="rw,nosuid,nodev")
    assert warning_lines_about_node(fake.node) == []


@pytest.mark.parametrize("mount", [S3Mount("data", "/d", "bucket"), NvmeMount("scratch", "/scratch")])
def test_kinds_without_the_key_always_have_them(make_node: Any, mount: Mount) -> None:
    fake = make_node([mount])
    fake.mounted(mount.path, "fuse", "mountpoint-s3", flags="rw")
    assert protect.missing_protective_flags(fake.node, mount) == ("nosuid", "nodev")


def test_apply_says_what_it_will_set_and_sets_it(make_node: Any) -> None:
    ours = replace(LUSTRE, platform=False)
    fake = make_node([ours])
    fake.mounted("/fsx", "lustre", SOURCE, flags="rw")
    before = ["mount", "-t", "lustre", "-o", "noatime,flock", f"{FSX}@tcp:/abcdefgh", "/fsx"]
    record_current_mount_as_kits(fake.node, ours, before)
    units = fake.root / "opt/hyperpod-kit/current/units"
    units.mkdir(parents=True)
    (units / "hyperpod-kit-mount-fsx.service").touch()
    assert bring_up.describe_pending_changes(fake.node, ours) == "set nosuid and nodev"
    changed, words = bring_up.start_unit_protect_and_copy_homes(fake.node, ours)
    assert changed and words.endswith("nosuid and nodev set") and "next mount" not in words
    assert "mount -o remount,bind,rw,nosuid,nodev /fsx" in fake.runner.calls


def test_to_do_without_them_takes_the_next_mount(make_node: Any) -> None:
    ours = replace(LUSTRE, platform=False)
    fake = make_node([ours])
    fake.mounted("/fsx", "lustre", SOURCE)
    loose = replace(ours, suid_and_devices=True)
    record_current_mount_as_kits(
        fake.node, ours, ["mount", "-t", "lustre", "-o", "nosuid,nodev,noatime,flock", f"{FSX}@tcp:/abcdefgh", "/fsx"]
    )
    assert bring_up.was_mounted_with_other_options(fake.node, loose) and not bring_up.was_mounted_with_other_options(
        fake.node, ours
    )


def test_the_report_has_the_warnings(
    make_node: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import argparse

    fake = make_node([])
    fake.mounted("/theirs", "nfs4", "server:/x", flags="rw")
    monkeypatch.setattr("hyperpod_kit.node.commands.mount_commands.open_node", lambda: fake.node)
    assert check_mounts_or_run_action_command(argparse.Namespace(names=[], json=True)) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == warning_lines_about_node(fake.node)
    assert check_mounts_or_run_action_command(argparse.Namespace(names=[], json=False)) == 0
    assert "warning: /theirs" in capsys.readouterr().err
