"""The file systems of the rehearsal: plain directories of the host, with the registries that the stand-ins read.

Of each kind there are two: the second is what a mistake, or a fault on purpose, mounts in the first one's place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping

from hyperpod_kit.rehearsal import state
from hyperpod_kit.rehearsal.layout import Layout

EFS_ID, OTHER_EFS_ID = "fs-0123456789abcdef0", "fs-0fedcba9876543210"
HOMES_EFS_ID = "fs-0a1b2c3d4e5f60718"
"""Without access points and without a policy: what an admin begins with who wants homes on EFS."""
ACCESS_POINT_ID = "fsap-0123456789abcdef0"
S3FILES_ID, OTHER_S3FILES_ID = "fs-0aaaabbbbccccdddd", "fs-0ddddccccbbbbaaaa"
S3FILES_ACCESS_POINT_ID = "fsap-0aaaabbbbccccdddd"
LUSTRE_DNS_NAME = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
LUSTRE_MOUNT_NAME, OTHER_LUSTRE_MOUNT_NAME = "abcdefgh", "hgfedcba"
OPENZFS_DNS_NAME = "fs-0123456789fedcba0.fsx.us-east-1.amazonaws.com"
OTHER_OPENZFS_DNS_NAME = "fs-0abcdef9876543210.fsx.us-east-1.amazonaws.com"
OPENZFS_EXPORT = "/fsx"
BUCKETS = ("sagemaker-hyperpod-kit-demo", "sagemaker-hyperpod-kit-data")


def _access_points(point: str, file_system: str) -> Dict[str, Any]:
    """The access point of the ordinary user `trainer`, in the form of EFS's API."""
    return {
        point: {
            "FileSystemId": file_system,
            "PosixUser": {"Uid": 2001, "Gid": 2001},
            "RootDirectory": {
                "Path": "/trainer",
                "CreationInfo": {"OwnerUid": 2001, "OwnerGid": 2001, "Permissions": "0750"},
            },
        }
    }


def registries(gateway: str) -> Dict[str, Mapping[str, Any]]:
    """registry.json by kind. `gateway`: address that serves as the Lustre servers'."""
    return {
        "efs": {
            "file_systems": [EFS_ID, OTHER_EFS_ID, HOMES_EFS_ID],
            "access_points": _access_points(ACCESS_POINT_ID, EFS_ID),
        },
        "s3files": {
            "file_systems": [S3FILES_ID, OTHER_S3FILES_ID],
            "access_points": _access_points(S3FILES_ACCESS_POINT_ID, S3FILES_ID),
        },
        "fsx": {name: {"dns": LUSTRE_DNS_NAME, "ip": gateway} for name in (LUSTRE_MOUNT_NAME, OTHER_LUSTRE_MOUNT_NAME)},
        "openzfs": {name: {"exports": [OPENZFS_EXPORT]} for name in (OPENZFS_DNS_NAME, OTHER_OPENZFS_DNS_NAME)},
    }


def create(layout: Layout, gateway: str) -> None:
    """Make the data directories, and the registries where there are none yet: the endpoint adds to them later."""
    for kind, registry in registries(gateway).items():
        place = layout.file_systems[kind]
        _directory(place, 0o755)
        if not (place / "registry.json").exists():
            state.write_json(place / "registry.json", registry, 0o644)
    for file_system in (EFS_ID, OTHER_EFS_ID, HOMES_EFS_ID):
        _directory(layout.file_systems["efs"] / file_system, 0o755)
    for file_system in (S3FILES_ID, OTHER_S3FILES_ID):
        _directory(layout.file_systems["s3files"] / file_system, 0o755)
    # A new FSx file system belongs to root; AWS's lifecycle scripts open it to the users. Sticky, as /tmp is.
    for name in (LUSTRE_MOUNT_NAME, OTHER_LUSTRE_MOUNT_NAME):
        _directory(layout.file_systems["fsx"] / name, 0o1777)
    for name in (OPENZFS_DNS_NAME, OTHER_OPENZFS_DNS_NAME):
        _directory(layout.file_systems["openzfs"] / name.split(".")[0] / OPENZFS_EXPORT.strip("/"), 0o1777)


def _directory(path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
