"""The exact command that makes each kind of mount, and what it must never hold."""

from __future__ import annotations

import subprocess
from dataclasses import fields, replace
from typing import Any

import pytest

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.model.units import carrier_unit
from hyperpod_kit.node.mounts.bring_up import start_unit_protect_and_copy_homes
from hyperpod_kit.node.mounts.ensure import ensure_mounted
from hyperpod_kit.node.mounts.kinds.registry import KINDS, kind_of
from hyperpod_kit.node.setup.wait_for_dns import mount_host_names
from hyperpod_rehearsal.standins.mountpoint_s3.options import parse_options

FS, AP = "fs-0123456789abcdef0", "fsap-0123456789abcdef0"
FSX = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
NFS = "nfsvers=4.2,nconnect=16,rsize=1048576,wsize=1048576,hard,timeo=600"


@pytest.mark.parametrize(
    "mount, line",
    [
        (
            EfsMount("home", "/efs", FS, AP),
            f"mount -t efs -o _netdev,nosuid,nodev,noresvport,tls,accesspoint={AP} {FS}:/ /efs",
        ),
        (EfsMount("home", "/efs", FS, tls=False), f"mount -t efs -o _netdev,nosuid,nodev,noresvport {FS}:/ /efs"),
        (
            EfsMount("home", "/efs", FS, AP, iam=True, region="eu-west-1"),
            f"mount -t efs -o _netdev,nosuid,nodev,noresvport,tls,iam,accesspoint={AP},region=eu-west-1 {FS}:/ /efs",
        ),
        (S3FilesMount("bucket", "/b", FS), f"mount -t s3files -o _netdev,nosuid,nodev,noresvport {FS}:/ /b"),
        (
            S3FilesMount("bucket", "/b", FS, AP),
            f"mount -t s3files -o _netdev,nosuid,nodev,noresvport,accesspoint={AP} {FS}:/ /b",
        ),
        (
            EfsMount("home", "/efs", FS, tls=False, suid_and_devices=True),
            f"mount -t efs -o _netdev,noresvport {FS}:/ /efs",
        ),
        (
            LustreMount("fsx", "/fsx", FSX, "abcdefgh", suid_and_devices=True),
            f"mount -t lustre -o noatime,flock {FSX}@tcp:/abcdefgh /fsx",
        ),
        (
            LustreMount("fsx", "/any/path", FSX, "abcdefgh"),
            f"mount -t lustre -o nosuid,nodev,noatime,flock {FSX}@tcp:/abcdefgh /any/path",
        ),
        (OpenZfsMount("homes", "/home", FSX), f"mount -t nfs -o _netdev,nosuid,nodev,noatime,{NFS} {FSX}:/fsx /home"),
        (
            OpenZfsMount("vol", "/vol", FSX, export="/fsx/vol1"),
            f"mount -t nfs -o _netdev,nosuid,nodev,noatime,{NFS} {FSX}:/fsx/vol1 /vol",
        ),
        (S3Mount("data", "/mnt/data", "bucket"), "systemctl start hyperpod-kit-s3-data.service"),
        (NvmeMount("scratch", "/scratch"), "mount -o bind,nosuid,nodev /opt/dlami/nvme/hyperpod-kit/scratch /scratch"),
    ],
)
def test_commands(make_node: Any, mount: Mount, line: str) -> None:
    node = make_node([mount]).node
    assert " ".join(kind_of(mount).mount_command(node, mount)) == line
    assert set(KINDS) >= {mount.kind}


def test_the_options_of_mountpoint_are_all_there_and_only_when_asked_for() -> None:
    plain = S3Mount("data", "/d", "bucket")
    assert plain.options() == [
        ("foreground", None),
        ("allow-other", None),
        ("read-only", None),
        ("uid", "0"),
        ("gid", "0"),
        ("dir-mode", "0755"),
        ("file-mode", "0644"),
    ]
    full = S3Mount(
        "data",
        "/d",
        "bucket",
        "a/",
        read_only=False,
        allow_delete=True,
        allow_overwrite=True,
        incremental_upload=True,
        uid=2001,
        gid=2001,
        dir_mode="0750",
        file_mode="0640",
        cache_dir="/scratch/",
        cache_mib=1024,
        metadata_ttl="indefinite",
        read_part_size_mib=16,
        write_part_size_mib=64,
        max_threads=32,
        maximum_throughput_gbps=50,
        region="us-west-2",
        endpoint_url="https://bucket.vpce-1.s3.us-west-2.amazonaws.com",
        force_path_style=True,
        expected_bucket_owner="111122223333",
        requester_pays=True,
        storage_class="INTELLIGENT_TIERING",
        sse="aws:kms",
        sse_kms_key_id="alias/key",
    )
    words = " ".join(f"--{name}" + (f" {value}" if value is not None else "") for name, value in full.options())
    assert words == (
        "--foreground --allow-other --allow-delete --allow-overwrite --incremental-upload --force-path-style "
        "--requester-pays --uid 2001 --gid 2001 --dir-mode 0750 --file-mode 0640 --prefix a/ --region us-west-2 "
        "--endpoint-url https://bucket.vpce-1.s3.us-west-2.amazonaws.com --expected-bucket-owner 111122223333 "
        "--cache /scratch/data --max-cache-size 1024 --metadata-ttl indefinite --read-part-size 16777216 "
        "--write-part-size 67108864 --max-threads 32 --maximum-throughput-gbps 50 --storage-class INTELLIGENT_TIERING "
        "--sse aws:kms --sse-kms-key-id alias/key"
    )
    # A read-only mount never carries an option that changes objects, whatever else is said.
    silent = S3Mount("data", "/d", "bucket", allow_delete=True, allow_overwrite=True, incremental_upload=True)
    assert silent.options() == plain.options()


def test_the_names_that_must_resolve_first(make_node: Any) -> None:
    mounts = (
        EfsMount("a", "/a", FS),
        EfsMount("b", "/b", FS, region="eu-west-1"),
        S3FilesMount("c", "/c", FS),
        OpenZfsMount("d", "/d", FSX),
        LustreMount("e", "/e", FSX, "x"),
        NvmeMount("f", "/f"),
        S3Mount("g", "/g", "bucket"),
        S3Mount("h", "/h", "bucket", region="us-west-2"),
        S3Mount("i", "/i", "bucket", endpoint_url="https://bucket.vpce-1.example.com:8443"),
    )
    assert mount_host_names(mounts, make_node([]).node.facts) == [
        f"{FS}.efs.us-east-1.amazonaws.com",
        f"{FS}.efs.eu-west-1.amazonaws.com",
        FSX,
        "s3.us-east-1.amazonaws.com",
        "s3.us-west-2.amazonaws.com",
        "bucket.vpce-1.example.com",
    ]


def test_every_option_of_mountpoint_is_spelled_as_the_client_spells_it() -> None:
    full = S3Mount(
        "data",
        "/d",
        "bucket",
        "a/",
        False,
        True,
        True,
        True,
        cache_dir="/c",
        cache_mib=1,
        metadata_ttl="60",
        read_part_size_mib=16,
        write_part_size_mib=64,
        max_threads=32,
        maximum_throughput_gbps=50,
        region="us-west-2",
        endpoint_url="https://s3.example.com",
        force_path_style=True,
        expected_bucket_owner="111122223333",
        requester_pays=True,
        storage_class="STANDARD_IA",
        sse="aws:kms",
        sse_kms_key_id="alias/key",
    )
    argv = [word for name, value in full.options() for word in (f"--{name}", value) if word is not None]
    parsed = parse_options([*argv, full.bucket, full.path])
    assert (parsed.write_part_size, parsed.prefix, parsed.cache) == (64 << 20, "a/", "/c/data")
    assert {field.name for field in fields(S3Mount)} - {name.replace("-", "_") for name, _ in full.options()} == {
        "name",
        "path",
        "bucket",
        "read_only",
        "world_writable",
        "largest_file_gib",
        "required",
        "roles",
        "groups",
        # Named after what they are; mount-s3 says max-cache-size, cache, read-part-size, write-part-size.
        "cache_mib",
        "cache_dir",
        "read_part_size_mib",
        "write_part_size_mib",
    }


def test_a_mount_that_is_made_again_is_made_by_the_same_command(make_node: Any) -> None:
    mount = EfsMount("home", "/efs", FS, AP)
    fake = make_node([mount])
    fake.runner.on("mount -t efs", do=lambda: fake.mounted("/efs", "nfs4", "127.0.0.1:/"))
    for _ in range(3):
        assert ensure_mounted(fake.node, mount) is True
        fake.unmounted("/efs")
    made = [call for call in fake.runner.calls if call.startswith("mount")]
    assert len(made) == 3 and len(set(made)) == 1


def test_new_options_do_not_tear_down_a_mount_that_serves(make_node: Any) -> None:
    mount = EfsMount("home", "/efs", FS, AP)
    fake = make_node([mount])
    fake.runner.on("mount -t efs", do=lambda: fake.mounted("/efs", "nfs4", "127.0.0.1:/"))
    assert ensure_mounted(fake.node, mount) is True
    assert start_unit_protect_and_copy_homes(fake.node, mount) == (False, f"{FS}:/ {AP}")
    changed = replace(mount, iam=True, required=False)
    before = len(fake.runner.calls)
    assert start_unit_protect_and_copy_homes(fake.node, changed) == (
        False,
        f"{FS}:/ {AP}; its new options apply from the next mount on",
    )
    assert not any(
        call.startswith(("mount", "umount", "systemctl re", "systemctl st")) for call in fake.runner.calls[before:]
    )


@pytest.mark.needs("systemd-escape")
def test_names_of_units_are_as_systemd_escape_leaves_them() -> None:
    mounts = [S3Mount(name, "/a", "b") for name in ("a", "a-b", "0", "a" * 40)]
    units = [carrier_unit(mount) for mount in mounts] + [carrier_unit(NvmeMount("a-b", "/a"))]
    done = subprocess.run(["systemd-escape", "--mangle", *units], text=True, stdout=subprocess.PIPE, check=True)
    assert done.stdout.split() == units
