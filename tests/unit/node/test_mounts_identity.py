"""Which file system is at a path: what the kernel shows, what helpers note, and what lies above or instead of ours."""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.node.mounts.kinds.mount_record import delete_record, record_current_mount_as_kits
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.node.observe.check import check_mount
from hyperpod_kit.system.mountinfo import find_mount_at

FS, OTHER = "fs-0123456789abcdef0", "fs-0fedcba9876543210"
AP = "fsap-0123456789abcdef0"
FSX = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
EFS = EfsMount("home", "/efs/a", FS, AP)
PLAIN = EfsMount("home", "/efs/a", FS, tls=False)
FILES = S3FilesMount("files", "/efs/a", FS)
S3 = S3Mount("data", "/mnt/data", "bucket", "corpus/")
UNIT = "hyperpod-kit-s3-data.service"


def note(fake: Any, name: str, **content: Any) -> None:
    """A state file as efs-utils leaves it."""
    directory = fake.root / "var/run/efs"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(json.dumps({"pid": 1, "mount_time": 1.0, **content}))


@pytest.mark.parametrize(
    "mount, port, files, state, source",
    [
        # The port leads to the file, whatever path it names: a mount can be moved.
        (EFS, "20100", {f"{FS}.efs.a.20100": {"accessPoint": AP}}, "ok", f"{FS}:/ {AP}"),
        (
            EFS,
            "20100",
            {f"{OTHER}.somewhere.else.20100": {"accessPoint": AP}, f"{FS}.efs.a.20099": {"accessPoint": AP}},
            "wrong_target",
            f"{OTHER}:/ {AP}",
        ),
        # Without a port, the path; of two files the one whose proxy runs, else the newest.
        (EFS, None, {f"{FS}.efs.a.20100": {"accessPoint": AP}, f"{FS}.efs.a.b.20101": {}}, "ok", f"{FS}:/ {AP}"),
        (
            EFS,
            None,
            {f"{OTHER}.efs.a.20100": {"mount_time": 2.0}, f"{FS}.efs.a.20101": {"accessPoint": AP}},
            "wrong_target",
            f"{OTHER}:/",
        ),
        (EFS, None, {f"{FS}.efs.a.20101": {}}, "wrong_target", f"{FS}:/"),
        # A proxy without --tls, where TLS was asked for, and one where it was not.
        (
            EFS,
            "20100",
            {f"{FS}.efs.a.20100": {"accessPoint": AP, "cmd": ["/usr/bin/efs-proxy", "c"]}},
            "wrong_target",
            f"{FS}:/ {AP}",
        ),
        (
            EFS,
            "20100",
            {f"{FS}.efs.a.20100": {"accessPoint": AP, "cmd": ["/usr/bin/efs-proxy", "c", "--tls"]}},
            "ok",
            f"{FS}:/ {AP}",
        ),
        (PLAIN, "20100", {f"{FS}.efs.a.20100": {"cmd": ["/usr/bin/efs-proxy", "c"]}}, "ok", f"{FS}:/"),
        # The same id, of the other service.
        (FILES, "20100", {f"{FS}.efs.a.20100": {"service_type": "elasticfilesystem"}}, "wrong_target", f"{FS}:/"),
        (FILES, "20100", {f"{FS}.efs.a.20100": {"service_type": "s3files"}}, "ok", f"{FS}:/"),
        (FILES, None, {f"{FS}.efs.a.20100": {}}, "ok", f"{FS}:/"),
    ],
)
def test_file_systems_behind_a_local_proxy(
    make_node: Any, mount: Any, port: Optional[str], files: dict[str, Any], state: str, source: str
) -> None:
    fake = make_node([mount])
    fake.mounted("/efs/a", "nfs4", "127.0.0.1:/", f"rw,port={port}" if port else "rw")
    for name, content in files.items():
        note(fake, name, **content)
    status = check_mount(fake.node, mount)
    assert (status.state, status.source) == (state, source), status.detail


@pytest.mark.parametrize(
    "mount, fs_type, source",
    [(EFS, "nfs4", "127.0.0.1:/"), (FILES, "fuse.s3files", "127.0.0.1:/"), (S3, "fuse", "mountpoint-s3")],
)
def test_what_lies_above_ours_or_in_its_place(make_node: Any, mount: Any, fs_type: str, source: str) -> None:
    fake = make_node([mount])
    fake.mounted(mount.path, fs_type, source)
    fake.serve_s3(UNIT, ["mount-s3", "--prefix", "corpus/", "bucket", "/mnt/data"])
    record_current_mount_as_kits(fake.node, mount)
    assert check_mount(fake.node, mount).state == "ok"
    fake.mounted(mount.path, fs_type, source)
    status = check_mount(fake.node, mount)
    assert (status.state, "another mount covers ours" in status.detail) == ("wrong_target", True)
    fake.unmounted(mount.path)
    fake.mounted("/elsewhere", "tmpfs", "tmpfs")  # another device number for what comes
    fake.mounted(mount.path, fs_type, source)
    status = check_mount(fake.node, mount)
    assert (status.state, "replaced ours" in status.detail) == ("wrong_target", True)
    # Made anew by us: noted anew.
    record_current_mount_as_kits(fake.node, mount)
    assert check_mount(fake.node, mount).state == "ok"
    delete_record(fake.node, mount)
    delete_record(fake.node, mount)
    assert check_mount(fake.node, mount).state == "ok"


def test_a_note_by_path_is_believed_where_nothing_lies_beneath(make_node: Any) -> None:
    fake = make_node([EFS])
    fake.mounted("/efs/a", "fuse.efs", "127.0.0.1:/")
    record_current_mount_as_kits(fake.node, EFS)
    fake.unmounted("/efs/a")
    fake.mounted("/elsewhere", "tmpfs", "tmpfs")
    fake.mounted("/efs/a", "fuse.efs", "127.0.0.1:/")
    note(fake, f"{OTHER}.efs.a.20100")
    assert check_mount(fake.node, EFS).source == f"{OTHER}:/"


def test_somebody_elses_mountpoint_is_named(make_node: Any) -> None:
    fake = make_node([S3])
    fake.mounted("/mnt/data", "fuse", "mountpoint-s3")
    fake.runner.on(f"systemctl show --property MainPID {UNIT}", out="MainPID=0\n")
    assert check_mount(fake.node, S3).state == "unknown"
    process = fake.root / "proc/777"
    process.mkdir()
    (process / "status").write_text("Uid:\t0\t4001\t0\t0\n")
    (process / "cmdline").write_text("mount-s3\0--prefix=corpus/\0bucket\0/mnt/data\0")
    assert check_mount(fake.node, S3).state == "unknown", "words of another user's process say nothing"
    (process / "status").write_text("Uid:\t0\t0\t0\t0\n")
    (process / "cmdline").write_text("/usr/bin/mount-s3\0--allow-other\0another\0/mnt/data/\0")
    status = check_mount(fake.node, S3)
    assert (status.state, status.source) == ("wrong_target", "s3://another/")
    # The right bucket, but not supervised and with whatever options: nothing that may be called ok.
    (process / "cmdline").write_text("mount-s3\0--prefix=corpus/\0bucket\0/mnt/data\0")
    assert (check_mount(fake.node, S3).state, check_mount(fake.node, S3).source) == ("unknown", "s3://bucket/corpus/")


@pytest.mark.parametrize(
    "export, fs_type, source, state",
    [
        ("/fsx", "nfs4", f"{FSX}:/fsx", "ok"),
        ("/fsx", "nfs4", f"{FSX}:/fsx/", "ok"),
        ("/fsx", "nfs", f"{FSX}:/fsx", "ok"),
        ("/fsx", "fuse.nfs4", f"{FSX}:/fsx", "ok"),
        ("/fsx", "nfs4", "10.0.0.9:/fsx", "ok"),
        ("/fsx", "nfs4", f"{FSX}:/fsx/vol1", "wrong_target"),
        ("/fsx/vol1", "nfs4", f"{FSX}:/fsx/vol1", "ok"),
        ("/fsx", "nfs4", f"{FSX.replace('fedcba', 'abcdef')}:/fsx", "wrong_target"),
        ("/fsx", "nfs4", "127.0.0.1:/", "wrong_target"),
        ("/fsx", "ext4", "/dev/nvme1n1", "wrong_target"),
    ],
)
def test_openzfs_is_known_by_name_and_export(
    make_node: Any, export: str, fs_type: str, source: str, state: str
) -> None:
    mount = OpenZfsMount("homes", "/home", FSX, export=export)
    fake = make_node([mount])
    fake.mounted("/home", fs_type, source)
    assert check_mount(fake.node, mount).state == state


def test_scratch_is_known_by_the_disk_and_the_directory(make_node: Any) -> None:
    mount = NvmeMount("scratch", "/scratch")
    fake = make_node([mount])
    (fake.root / "scratch").mkdir()

    def listed(root: str, device: str) -> str:
        fake.table = [
            "20 1 259:1 / / rw - ext4 /dev/root rw",
            "30 20 259:5 / /opt/dlami/nvme rw - ext4 /dev/mapper/vg.01-lv_ephemeral rw",
            f"40 20 {device} {root} /scratch rw,nosuid - ext4 /dev/mapper/vg.01-lv_ephemeral rw",
        ]
        fake._write()
        return check_mount(fake.node, mount).state

    assert listed("/hyperpod-kit/scratch", "259:5") == "ok"
    assert listed("/hyperpod-kit/other", "259:5") == "wrong_target"
    assert listed("/hyperpod-kit/scratch", "259:1") == "wrong_target"  # the root disk
    assert listed("/hyperpod-kit/scratch", "259:9") == "wrong_target"
    record_current_mount_as_kits(fake.node, mount)  # made by us; the image's own mount of the store has gone since
    assert check_mount(fake.node, mount).state == "ok"


def test_an_automount_that_waits_is_no_mount_yet(make_node: Any) -> None:
    text = (
        "31 22 0:45 / /fsx rw,relatime - autofs systemd-1 rw,fd=48,direct\n"
        "32 31 0:46 / /fsx rw,noatime - lustre 10.0.0.1@tcp:/abcdefgh rw,flock\n"
    )
    found = find_mount_at(text, "/fsx")
    assert found is not None and (found.fs_type, found.stacked) == ("lustre", 1)
    assert find_mount_at(text.splitlines()[0], "/fsx") is None
    mount = LustreMount("fsx", "/fsx", FSX, "abcdefgh")
    fake = make_node([mount])
    fake.mounted("/fsx", "autofs", "systemd-1")
    assert check_mount(fake.node, mount).state == "absent"
    assert kind_of(mount).endpoint_is_dead(fake.node, mount, found) is False
