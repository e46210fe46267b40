"""Faults of mounts as far as they are decided without a machine."""

from __future__ import annotations

import os

import click
import pytest

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.model.instance_types import has_instance_store
from hyperpod_rehearsal import mount_faults, storage
from hyperpod_rehearsal.cli.commands import break_mount
from hyperpod_rehearsal.mount_faults import MountPoint, foreign_mount_command
from hyperpod_rehearsal.mounts.efs import OTHER_EFS_ID
from hyperpod_rehearsal.mounts.mountpoint_s3 import BUCKETS
from hyperpod_rehearsal.mounts.openzfs import OTHER_OPENZFS_DNS_NAME
from hyperpod_rehearsal.records.layout import Layout
from tests.support.runner import RecordingRunner


def test_the_command_offers_every_fault():
    fault = next(parameter for parameter in break_mount.params if parameter.name == "fault")
    assert isinstance(fault.type, click.Choice)
    assert list(fault.type.choices) == list(mount_faults.FAULTS) and set(mount_faults.UNDO) < set(mount_faults.FAULTS)


@pytest.mark.parametrize(
    ("fs_type", "serving", "expected"),
    [
        (
            "fuse",
            ["python3", "mount-s3", "--prefix", "corpus/", BUCKETS[1], "/m"],
            ["/usr/bin/mount-s3", "--allow-other", BUCKETS[0], "/m"],
        ),
        (
            "fuse",
            ["python3", "mount-s3", BUCKETS[0], "/m"],
            ["/usr/bin/mount-s3", "--allow-other", BUCKETS[1], "/m"],
        ),
        ("fuse.efs", [], ["/usr/bin/mount", "-t", "efs", "-o", "tls", f"{OTHER_EFS_ID}:/", "/m"]),
        ("fuse.nfs4", [], ["/usr/bin/mount", "-t", "nfs", f"{OTHER_OPENZFS_DNS_NAME}:/fsx", "/m"]),
        ("ext4", [], ["/usr/bin/mount", "-t", "tmpfs", "somebody-elses", "/m"]),
    ],
)
def test_something_else_of_the_same_kind(fs_type, serving, expected):
    assert foreign_mount_command(fs_type, serving, "/m") == expected


def test_every_foreign_source_is_one_that_the_stand_ins_know():
    registries = str(storage.initial_registries("10.1.0.1"))
    for fs_type in ("fuse.efs", "fuse.s3files", "fuse.lustre", "fuse.nfs4"):
        source = foreign_mount_command(fs_type, [], "/m")[-2]
        assert source.split("@")[0].split(":")[0] in registries, source


def test_a_mount_without_a_process_has_none_to_signal():
    """This process's own root stands for a mount that the kernel alone serves."""
    node = {"place": "gpu/0", "instance_id": "i-0"}
    at = MountPoint(Layout.for_name("absent"), node, os.getpid(), "/", RecordingRunner())
    with pytest.raises(RehearsalError, match=r"no process to signal: mounted at / of gpu/0 is \S+ from \S+, which no"):
        mount_faults.kill_daemon(at)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ml.c5.xlarge", False),
        ("ml.m6i.large", False),
        ("ml.r5d.large", True),
        ("ml.i3en.large", True),
        ("ml.p6-b200.48xlarge", True),
        ("ml.p5.48xlarge", True),
        ("ml.p4d.24xlarge", True),
        ("ml.g5.xlarge", True),
        ("ml.trn1.32xlarge", True),
    ],
)
def test_instance_types_with_local_nvme(name, expected):
    assert has_instance_store(name) is expected
