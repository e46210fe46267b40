"""The exact command that makes each kind of mount, and what it must never hold."""

from __future__ import annotations

from typing import Any

import pytest

from hyperpod_kit.model.mounts import (
    EfsMount,
    LustreMount,
    Mount,
    NvmeMount,
    OpenZfsMount,
    S3FilesMount,
    S3Mount,
)
from hyperpod_kit.node.mounts.kinds import KINDS, kind_of
from hyperpod_kit.node.names import names_of

FS, AP = "fs-0123456789abcdef0", "fsap-0123456789abcdef0"
FSX = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"


@pytest.mark.parametrize("mount, line", [
    (EfsMount("home", "/efs", FS, AP), f"mount -t efs -o _netdev,noresvport,tls,accesspoint={AP} {FS}:/ /efs"),
    (EfsMount("home", "/efs", FS, tls=False), f"mount -t efs -o _netdev,noresvport {FS}:/ /efs"),
    (EfsMount("home", "/efs", FS, AP, iam=True, region="eu-west-1"),
     f"mount -t efs -o _netdev,noresvport,tls,iam,accesspoint={AP},region=eu-west-1 {FS}:/ /efs"),
    (S3FilesMount("bucket", "/b", FS), f"mount -t s3files -o _netdev,noresvport {FS}:/ /b"),
    (S3FilesMount("bucket", "/b", FS, AP), f"mount -t s3files -o _netdev,noresvport,accesspoint={AP} {FS}:/ /b"),
    (LustreMount("fsx", "/any/path", FSX, "abcdefgh"),
     f"mount -t lustre -o noatime,flock {FSX}@tcp:/abcdefgh /any/path"),
    (OpenZfsMount("homes", "/home", FSX),
     f"mount -t nfs -o _netdev,noatime,nfsvers=4.2,nconnect=16,rsize=1048576,wsize=1048576,hard,timeo=600 {FSX}:/fsx "
     "/home"),
    (OpenZfsMount("vol", "/vol", FSX, export="/fsx/vol1"),
     f"mount -t nfs -o _netdev,noatime,nfsvers=4.2,nconnect=16,rsize=1048576,wsize=1048576,hard,timeo=600 "
     f"{FSX}:/fsx/vol1 /vol"),
    (S3Mount("data", "/mnt/data", "bucket"), "systemctl start hyperpod-kit-s3-data.service"),
    (NvmeMount("scratch", "/scratch"),
     "mount -o bind,nosuid,nodev /opt/dlami/nvme/hyperpod-kit/scratch /scratch"),
])
def test_commands(make_node: Any, mount: Mount, line: str) -> None:
    node = make_node([mount]).node
    assert " ".join(kind_of(mount).command(node, mount)) == line
    assert set(KINDS) >= {mount.kind}


def test_the_options_of_mountpoint_are_all_there_and_only_when_asked_for() -> None:
    plain = S3Mount("data", "/d", "bucket")
    assert plain.options() == [("foreground", None), ("allow-other", None), ("read-only", None), ("uid", "0"),
                               ("gid", "0"), ("dir-mode", "0755"), ("file-mode", "0644")]
    full = S3Mount(
        "data", "/d", "bucket", "a/", read_only=False, allow_delete=True, allow_overwrite=True, incremental_upload=True,
        uid=2001, gid=2001, dir_mode="0750", file_mode="0640", cache_dir="/scratch/", cache_mib=1024,
        metadata_ttl="indefinite", read_part_size_mib=16, write_part_size_mib=64, max_threads=32,
        maximum_throughput_gbps=50, region="us-west-2", endpoint_url="https://bucket.vpce-1.s3.us-west-2.amazonaws.com",
        force_path_style=True, expected_bucket_owner="111122223333", requester_pays=True,
        storage_class="INTELLIGENT_TIERING", sse="aws:kms", sse_kms_key_id="alias/key")
    words = " ".join(f"--{name}" + (f" {value}" if value is not None else "") for name, value in full.options())
    assert words == (
        "--foreground --allow-other --allow-delete --allow-overwrite --incremental-upload --force-path-style "
        "--requester-pays --uid 2001 --gid 2001 --dir-mode 0750 --file-mode 0640 --prefix a/ --region us-west-2 "
        "--endpoint-url https://bucket.vpce-1.s3.us-west-2.amazonaws.com --expected-bucket-owner 111122223333 "
        "--cache /scratch/data --max-cache-size 1024 --metadata-ttl indefinite --read-part-size 16777216 "
        "--write-part-size 67108864 --max-threads 32 --maximum-throughput-gbps 50 --storage-class INTELLIGENT_TIERING "
        "--sse aws:kms --sse-kms-key-id alias/key")
    # A read-only mount never carries an option that changes objects, whatever else is said.
    silent = S3Mount("data", "/d", "bucket", allow_delete=True, allow_overwrite=True, incremental_upload=True)
    assert silent.options() == plain.options()


def test_the_names_that_must_resolve_first(make_node: Any) -> None:
    mounts = (
        EfsMount("a", "/a", FS), EfsMount("b", "/b", FS, region="eu-west-1"), S3FilesMount("c", "/c", FS),
        OpenZfsMount("d", "/d", FSX), LustreMount("e", "/e", FSX, "x"), NvmeMount("f", "/f"),
        S3Mount("g", "/g", "bucket"), S3Mount("h", "/h", "bucket", region="us-west-2"),
        S3Mount("i", "/i", "bucket", endpoint_url="https://bucket.vpce-1.example.com:8443"))
    assert names_of(mounts, make_node([]).node.facts) == [
        f"{FS}.efs.us-east-1.amazonaws.com", f"{FS}.efs.eu-west-1.amazonaws.com", FSX, "s3.us-east-1.amazonaws.com",
        "s3.us-west-2.amazonaws.com", "bucket.vpce-1.example.com"]
