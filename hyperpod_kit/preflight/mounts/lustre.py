"""FSx for Lustre: its ports and its mount name."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.preflight.facts import FsxFileSystem
from hyperpod_kit.preflight.mounts.inquiry import FsxType, MountInquiry, no_permissions

PORTS = (988, 1018, 1019, 1020, 1021, 1022, 1023)
"""FSx for Lustre User Guide, `File system access control with Amazon VPC`: both ways."""


def check_mount_name(mount: LustreMount, config_path: str, system: FsxFileSystem) -> Iterator[Finding]:
    """Yield a finding when the mount name is not the file system's own."""
    if system.mount_name and mount.mount_name != system.mount_name:
        yield Finding(
            "HPK-V505",
            config_path,
            f"the mount name of {system.id} is {system.mount_name}, not {mount.mount_name}",
            f"Write {system.mount_name}",
        )


KIND = MountInquiry(
    permissions=no_permissions,
    shared=None,
    fsx=FsxType(
        "LUSTRE", PORTS, both_ways=True, part="mount_name", volumes=lambda mount: False, differs=check_mount_name
    ),
    bucket=None,
    checks=(),
)
