"""EFS.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Optional, Tuple

from hyperpod_kit.model.mounts.base import DERIVED, ONE_SHOT, Mount, Traits
from hyperpod_kit.model.states import ROLES


@dataclass(frozen=True)
class EfsMount(Mount):
    """An EFS file system, through an access point when `access_point_id` is set (which needs tls)."""

    kind: ClassVar[str] = "efs"
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
        keeps_slurm_state=True,
        storage_config="",
    )
    name: str
    path: str
    file_system_id: str
    access_point_id: Optional[str] = None
    tls: bool = True
    iam: bool = False
    region: Optional[str] = None
    suid_and_devices: bool = False
    owner: Optional[str] = field(default=None, metadata=DERIVED)
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()

    def host(self, region: str, dns_suffix: str) -> str:
        where = self.region or region
        if where:
            return f"{self.file_system_id}.efs.{where}.{dns_suffix}"
        return ""

    def has_single_owner(self) -> bool:
        return bool(self.access_point_id or self.owner)
