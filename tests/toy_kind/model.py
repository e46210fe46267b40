"""The toy filer.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Tuple

from hyperpod_kit.model.mounts.base import ONE_SHOT, Mount, Traits
from hyperpod_kit.model.states import ROLES


@dataclass(frozen=True)
class ToyMount(Mount):
    """A volume of a toy filer: `server`:`volume`."""

    kind: ClassVar[str] = "toy"
    traits: ClassVar[Traits] = Traits(
        client="",
        service=ONE_SHOT,
        target=("server", "volume"),
        in_vpc=True,
        nfs=False,
        helper_stays=False,
        kernel_module=False,
        local_disk=False,
        tells_capacity=True,
        one_identity=False,
        cached_stat=False,
        keeps_versions=False,
        carries_homes=True,
        holds_shares=False,
        at_home=False,
        keeps_slurm_state=False,
        storage_config="",
    )
    name: str
    path: str
    server: str
    volume: str = "vol0"
    suid_and_devices: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()

    def host(self, region: str, dns_suffix: str) -> str:
        return self.server
