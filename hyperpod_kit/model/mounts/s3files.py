"""S3 Files.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Optional, Tuple

from hyperpod_kit.model.mounts.base import ONE_SHOT, Mount, Traits
from hyperpod_kit.model.states import ROLES


@dataclass(frozen=True)
class S3FilesMount(Mount):
    """An S3 Files file system: a bucket with NFS 4.2 in front. TLS and IAM are always on, the helper sees to it."""

    kind: ClassVar[str] = "s3files"
    traits: ClassVar[Traits] = Traits(
        client="efs-utils",
        service=ONE_SHOT,
        target=("file_system_id", "access_point_id", "region"),
        in_vpc=True,
        nfs=True,
        helper_stays=True,
        kernel_module=False,
        local_disk=False,
        tells_capacity=True,
        one_identity=False,
        cached_stat=False,
        keeps_versions=False,
        holds_shares=False,
        carries_homes=True,
        at_home=False,
        keeps_slurm_state=False,
        storage_config="",
    )
    name: str
    path: str
    file_system_id: str
    access_point_id: Optional[str] = None
    region: Optional[str] = None
    suid_and_devices: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()

    def host(self, region: str, dns_suffix: str) -> str:
        return ""  # it begins with the availability zone's id, which the configuration does not know
