"""FSx for Lustre.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Tuple

from hyperpod_kit.model.mounts.base import DERIVED, ONE_SHOT, Mount, Traits
from hyperpod_kit.model.states import ROLES


@dataclass(frozen=True)
class LustreMount(Mount):
    """An FSx for Lustre file system: `dns_name`@tcp:/`mount_name`.

    efa: mounted only after FSx's EFA set-up of this node, which a mount that comes first silently does without.
    """

    kind: ClassVar[str] = "lustre"
    traits: ClassVar[Traits] = Traits(
        client="lustre",
        service=ONE_SHOT,
        target=("dns_name", "mount_name"),
        in_vpc=True,
        nfs=False,
        helper_stays=False,
        kernel_module=True,
        local_disk=False,
        tells_capacity=True,
        one_identity=False,
        cached_stat=False,
        keeps_versions=False,
        holds_shares=True,
        carries_homes=True,
        at_home=False,
        keeps_slurm_state=True,
        storage_config="FsxLustreConfig",
    )
    name: str
    path: str
    dns_name: str
    mount_name: str
    efa: bool = False
    suid_and_devices: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()
    platform: bool = field(default=False, metadata=DERIVED)

    def platform_can_mount(self) -> bool:
        return not self.efa  # HyperPod mounts before our script can set EFA up

    def host(self, region: str, dns_suffix: str) -> str:
        return self.dns_name
