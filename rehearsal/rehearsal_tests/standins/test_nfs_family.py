"""mount.s3files, mount.nfs, and the state file that efs-utils' helpers leave beside /proc/mounts."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess

import pytest

from rehearsal_tests.standins.conftest import (
    EFS,
    OPENZFS_DNS,
    POINT,
    S3FILES,
    S3FILES_POINT,
    USER,
    mount_line,
    needs_mounts,
    refused,
)
from tests.support.wait import until

pytestmark = needs_mounts
OPENZFS = f"{OPENZFS_DNS}:/fsx"


@pytest.fixture
def s3files(node):
    target = node.mount_point("bucket")
    node.mount("mount.s3files", f"{S3FILES}:/", target, "-o", f"rw,_netdev,accesspoint={S3FILES_POINT}")
    return target


@pytest.fixture
def openzfs(node):
    target = node.mount_point("zfs")
    node.mount("mount.nfs", OPENZFS, target, "-o", "nfsvers=4.2,nconnect=16,noatime")
    return target


def states(node):
    """The state files, by name."""
    directory = node.directory / "run-efs"
    by_name = {}
    for path in directory.iterdir() if directory.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # its helper takes it away when the mount goes
            by_name[path.name] = json.loads(path.read_text())
    return by_name


def test_what_is_shown_in_the_mount_table(s3files, openzfs):
    assert mount_line(s3files)[:3] == ["127.0.0.1:/", str(s3files), "fuse.s3files"]
    assert mount_line(openzfs)[:3] == [OPENZFS, str(openzfs), "fuse.nfs4"]
    assert "noatime" in mount_line(openzfs)[3]


def test_s3_files_renames_and_squashes(s3files):
    (s3files / "part").write_text("1")
    os.rename(s3files / "part", s3files / "whole")
    assert os.stat(s3files / "whole").st_uid == USER
    refused(errno.EPERM, os.chown, s3files / "whole", 0, 0)


@pytest.mark.parametrize(
    ("source", "options", "code", "message"),
    [
        (f"{S3FILES}:/", "notls", 1, 'Unsupported mount options detected: "notls"'),
        (f"{S3FILES}:/", "az=use1-az1", 1, 'Unsupported mount options detected: "az"'),
        (f"{S3FILES}:/", "nfsvers=4.0", 1, "NFSv4.0 is not supported for S3 Files mounts"),
        (f"{S3FILES}:/", "accesspoint=fsap-1", 1, "Access Point ID fsap-1 is malformed"),
        (f"{S3FILES}:/", "accesspoint=fsap-00000000000000001", 32, "access denied by server"),
        (f"{EFS}:/", "", 1, f'Failed to resolve "{EFS}.s3files.us-east-1.on.aws"'),
        (f"{S3FILES}:/", "typo=1", 32, "an incorrect mount option was specified (typo)"),
    ],
)
def test_s3_files_refuses(node, source, options, code, message):
    target = node.mount_point("mnt")
    done = node.run("mount.s3files", source, target, *(["-o", options] if options else []))
    assert (done.returncode, mount_line(target)) == (code, []) and message in done.stderr


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (f"{OPENZFS_DNS}:/other", "nfsvers=4.2", "No such file or directory"),
        ("elsewhere:/fsx", "nfsvers=4.2", "Failed to resolve server elsewhere"),
        (OPENZFS, "nfsvers=5", "an incorrect mount option was specified"),
        (OPENZFS, "nconnect=17", "an incorrect mount option was specified"),
        (OPENZFS, "tls", "an incorrect mount option was specified (tls)"),
    ],
)
def test_nfs_refuses(node, source, options, message):
    target = node.mount_point("mnt")
    done = node.run("mount.nfs", source, target, "-o", options)
    assert (done.returncode, mount_line(target)) == (32, []) and message in done.stderr


def test_the_state_file_lives_as_long_as_the_mount(node, efs, s3files):
    by_file_system = {name.split(".")[0]: state for name, state in states(node).items()}
    assert {system: state["accessPoint"] for system, state in by_file_system.items()} == {
        EFS: POINT,
        S3FILES: S3FILES_POINT,
    }
    assert by_file_system[EFS]["mountpoint"] == str(efs)
    names = [name for name in states(node) if name.startswith(EFS)]
    assert [name.rpartition(".")[0] for name in names] == [f"{EFS}.{str(efs).strip('/').replace('/', '.')}"]
    subprocess.run(["umount", str(efs)], check=True, timeout=60)
    assert until(lambda: [name.split(".")[0] for name in states(node)] == [S3FILES])


def test_what_a_dead_helper_left_is_replaced_by_the_next_mount(node, efs):
    os.kill(next(iter(states(node).values()))["pid"], signal.SIGKILL)
    subprocess.run(["umount", "-l", str(efs)], check=True, timeout=60)
    assert len(states(node)) == 1
    node.mount("mount.efs", f"{EFS}:/", efs, "-o", "tls")
    assert ["accessPoint" in state for state in states(node).values()] == [False]
