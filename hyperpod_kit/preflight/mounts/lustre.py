"""FSx for Lustre: its ports and its mount name."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.preflight.facts import FsxFileSystem
from hyperpod_kit.preflight.mounts.inquiry import FsxType, MountInquiry
from hyperpod_kit.preflight.permission import Account, Carried, Permission
from hyperpod_kit.preflight.placement import NodeRole

PORTS = (988, 1018, 1019, 1020, 1021, 1022, 1023)
"""FSx for Lustre User Guide, `File system access control with Amazon VPC`: both ways."""


EFA_CAPACITY_STEPS = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
"""MB/s for each TiB -> GiB of which the capacity of a file system with EFA is a multiple: FSx for Lustre User Guide,
`Increasing storage capacity`."""


def efa_set_up_permission(carried: Carried, account: Account, role: NodeRole) -> Iterator[Permission]:
    """What FSx's set-up of EFA asks on a node: without it the node mounts by TCP, and says nothing."""
    paths = [path for mount, path in carried if mount.efa]
    if paths:
        yield Permission(
            "EfaLustre",
            "the set-up of EFA for Lustre, without which nodes mount over TCP without a warning",
            paths[0],
            ("fsx:DescribeFileSystems",),
            ("*",),
        )


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
    permissions=efa_set_up_permission,
    shared=None,
    fsx=FsxType(
        "LUSTRE", PORTS, both_ways=True, part="mount_name", volumes=lambda mount: False, differs=check_mount_name
    ),
    bucket=None,
    checks=(),
)
