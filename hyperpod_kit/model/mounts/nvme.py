"""Local NVMe instance store.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Tuple

from hyperpod_kit.model.mounts.base import ONE_SHOT, Mount, Traits, lets_users_write
from hyperpod_kit.model.states import ROLES


@dataclass(frozen=True)
class NvmeMount(Mount):
    """Local NVMe instance store as scratch: empty after a stop or a replacement, and after a reboot on HyperPod.

    uid, gid, mode: of the directory; 1777 (everybody's, sticky) only where `world_writable` says so too.
    """

    kind: ClassVar[str] = "nvme"
    traits: ClassVar[Traits] = Traits(
        client="",
        service=ONE_SHOT,
        target=(),
        in_vpc=False,
        nfs=False,
        helper_stays=False,
        kernel_module=False,
        local_disk=True,
        tells_capacity=True,
        one_identity=False,
        cached_stat=False,
        keeps_versions=False,
        holds_shares=False,
        carries_homes=False,
        at_home=False,
        keeps_slurm_state=False,
        storage_config="",
    )
    name: str
    path: str
    uid: int = 0
    gid: int = 0
    mode: str = "0755"
    world_writable: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()

    def only_root_writes(self) -> bool:
        return not lets_users_write(self.mode, self.uid, self.gid)

    def host(self, region: str, dns_suffix: str) -> str:
        return ""
