"""The file systems of the rehearsal: plain directories of the host, with the registries that the stand-ins read."""

from __future__ import annotations

from pathlib import Path

from hyperpod_kit.rehearsal import state
from hyperpod_kit.rehearsal.layout import Layout

EFS_ID = "fs-0123456789abcdef0"
ACCESS_POINT_ID = "fsap-0123456789abcdef0"
LUSTRE_DNS_NAME = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
LUSTRE_MOUNT_NAME = "abcdefgh"
BUCKETS = ("sagemaker-hyperpod-kit-demo", "sagemaker-hyperpod-kit-data")

EFS_REGISTRY = {
    "file_systems": [EFS_ID],
    "access_points": {
        ACCESS_POINT_ID: {
            "FileSystemId": EFS_ID,
            "PosixUser": {"Uid": 2001, "Gid": 2001},
            "RootDirectory": {"Path": "/trainer",
                              "CreationInfo": {"OwnerUid": 2001, "OwnerGid": 2001, "Permissions": "0750"}},
        },
    },
}


def create(layout: Layout, gateway: str) -> None:
    """Make the data directories and registries. `gateway`: address that serves as the Lustre server's. Repeatable."""
    _directory(layout.efs, 0o755)
    _directory(layout.efs / EFS_ID, 0o755)
    state.write_json(layout.efs / "registry.json", EFS_REGISTRY, 0o644)
    _directory(layout.fsx, 0o755)
    # A new Lustre file system belongs to root; AWS's lifecycle scripts open it to the users. Sticky, as /tmp is.
    _directory(layout.fsx / LUSTRE_MOUNT_NAME, 0o1777)
    state.write_json(layout.fsx / "registry.json", {LUSTRE_MOUNT_NAME: {"dns": LUSTRE_DNS_NAME, "ip": gateway}}, 0o644)


def _directory(path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
