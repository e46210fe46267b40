"""FSx for OpenZFS: its port and its volumes."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.model.mounts.openzfs import ROOT_VOLUME, OpenZfsMount
from hyperpod_kit.preflight.facts import FsxFileSystem, value_or_none
from hyperpod_kit.preflight.mounts.inquiry import FsxType, MountInquiry, no_permissions

PORTS = (2049,)
"""NFS 4.2 needs no other; the guide's further ones serve older versions."""


def is_non_root_volume(mount: OpenZfsMount) -> bool:
    """Whether the mount names a volume other than the root volume, which every file system has."""
    return mount.export != ROOT_VOLUME


def check_volume_exists(mount: OpenZfsMount, config_path: str, system: FsxFileSystem) -> Iterator[Finding]:
    """Yield a finding when the file system has no volume of the mount's export."""
    paths = value_or_none(system.volumes)
    if paths is not None and mount.export not in paths:
        listed = ", ".join(sorted(paths)[:5]) or "none"
        yield Finding(
            "HPK-V506",
            config_path,
            f"{system.id} has no volume {mount.export}; its volumes: {listed}",
            "Name one of its volumes",
        )


KIND = MountInquiry(
    permissions=no_permissions,
    shared=None,
    fsx=FsxType(
        "OPENZFS", PORTS, both_ways=False, part="export", volumes=is_non_root_volume, differs=check_volume_exists
    ),
    bucket=None,
    checks=(),
)
