"""FSx for OpenZFS.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Tuple

from hyperpod_kit.model.mounts.base import DERIVED, ONE_SHOT, Mount, Traits
from hyperpod_kit.model.states import ROLES

ROOT_VOLUME = "/fsx"


@dataclass(frozen=True)
class OpenZfsMount(Mount):
    """An FSx for OpenZFS volume over NFS 4.2: `dns_name`:`export`."""

    kind: ClassVar[str] = "openzfs"
    traits: ClassVar[Traits] = Traits(
        client="nfs",
        service=ONE_SHOT,
        target=("dns_name", "export"),
        in_vpc=True,
        nfs=True,
        helper_stays=False,
        kernel_module=False,
        local_disk=False,
        tells_capacity=True,
        one_identity=False,
        cached_stat=False,
        keeps_versions=False,
        holds_shares=True,
        carries_homes=True,
        at_home=True,
        keeps_slurm_state=True,
        storage_config="FsxOpenZfsConfig",
    )
    name: str
    path: str
    dns_name: str
    export: str = ROOT_VOLUME
    suid_and_devices: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()
    platform: bool = field(default=False, metadata=DERIVED)

    def host(self, region: str, dns_suffix: str) -> str:
        return self.dns_name

    def platform_can_mount(self) -> bool:
        return self.export == ROOT_VOLUME  # InstanceStorageConfigs names no export
