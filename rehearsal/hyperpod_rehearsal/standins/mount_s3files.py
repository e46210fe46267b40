"""mount.s3files of a rehearsal: mount -t s3files -o accesspoint=fsap-... fs-...:/ /mnt/bucket

S3 Files shows a bucket over NFS 4.2; its helper is efs-utils' (3.0 and newer), which forces tls and iam. Here a file
system is a directory of its own: nothing is exported to the rehearsal's S3. registry.json in the data directory:
{"file_systems": [ID...], "access_points": {ID: {"FileSystemId", "PosixUser", "RootDirectory"}}}.
"""

from __future__ import annotations

import os
import re
from typing import Optional, Sequence

from hyperpod_rehearsal.standins.access_point import SHOWN, mount_denied_error, prepare_access_point
from hyperpod_rehearsal.standins.fuse.arguments import (
    data_directory,
    parse_efs_arguments,
    read_file_system_registry,
    run_mount_helper,
    unknown_options,
)
from hyperpod_rehearsal.standins.fuse.background import StartFailed
from hyperpod_rehearsal.standins.passthrough.identity import PosixIdentity
from hyperpod_rehearsal.standins.passthrough.proxy_state import ProxyState
from hyperpod_rehearsal.standins.passthrough.start import serve_directory_as_fuse_mount

VERSION = "mount.s3files Version: 3.1.1+standin (hyperpod-kit rehearsal stand-in, not amazon-efs-utils)"
REFUSED = ("az", "crossaccount", "notls", "stunnel", "capath")
SUPPORTED_OPTIONS = (
    "tls",
    "accesspoint",
    "iam",
    "awsprofile",
    "awscredsuri",
    "cafile",
    "region",
    "ocsp",
    "noocsp",
    "tlsport",
    "netns",
    "mounttargetip",
    "ro",
    "noresvport",
    "noatime",
    "hard",
    "soft",
    "verify",
    "rolearn",
    "jwtpath",
    "nfsvers",
    "vers",
    "rsize",
    "wsize",
    "timeo",
    "retrans",
    "nodirects3read",
    "nos3readcache",
)
SOURCE = re.compile(r"(?:[a-z0-9-]+\.)?(fs-[0-9a-f]{8,17})(?:\.s3files\.[a-z0-9-]+\.on\.aws)?(?::(/.*)?)?")
ACCESS_POINT = re.compile(r"fsap-[0-9a-f]{17}")


def main(argv: Sequence[str]) -> int:
    """Run mount.s3files and return its exit code."""
    return run_mount_helper(argv, VERSION, _mount_from_arguments)


def _mount_from_arguments(argv: Sequence[str]) -> int:
    file_system, path, target, options = parse_efs_arguments(argv, "mount.s3files", SOURCE)
    refused = [f'"{name}"' for name in REFUSED if name in options]
    if refused:
        raise StartFailed(f"Unsupported mount options detected: {', '.join(refused)}")
    unsupported = unknown_options(options, SUPPORTED_OPTIONS)
    if unsupported:
        raise StartFailed(f"mount.nfs4: an incorrect mount option was specified ({unsupported[0]})", 32)
    if "4.0" in (options.get("nfsvers"), options.get("vers")):
        raise StartFailed("NFSv4.0 is not supported for S3 Files mounts")
    point = options.get("accesspoint")
    if point is not None and not ACCESS_POINT.fullmatch(point):
        raise StartFailed(f"Access Point ID {point} is malformed")
    registry = read_file_system_registry("s3files")
    if file_system not in registry["file_systems"]:
        raise StartFailed(f'Failed to resolve "{file_system}.s3files.{options.get("region", "us-east-1")}.on.aws"')
    if not os.path.isdir(target):
        raise StartFailed(f"mount.nfs4: mount point {target} does not exist", 32)
    base = os.path.join(data_directory("s3files"), file_system)
    squash: Optional[PosixIdentity] = None
    directory = os.path.join(base, path.strip("/"))
    if point is not None:
        directory, squash = prepare_access_point(registry["access_points"], point, file_system, base)
    if not os.path.isdir(directory):
        raise mount_denied_error()
    state = ProxyState(file_system, target, {"fsId": file_system, "useIam": True, "accessPoint": point})
    return serve_directory_as_fuse_mount(
        directory,
        target,
        program="mount.s3files",
        source=SHOWN,
        subtype="s3files",
        squash=squash,
        read_only="ro" in options,
        no_atime="noatime" in options,
        state=state,
    )
