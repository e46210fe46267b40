"""Which FSx mounts HyperPod makes by itself: those must never be mounted a second time.

In on_create mode it makes none. In on_init_complete and ami_only mode it makes, in each instance group, what
InstanceStorageConfigs names: at most one Lustre and one OpenZFS.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

from hyperpod_kit.model.mounts import LustreMount, Mount, OpenZfsMount, carried_by
from hyperpod_kit.model.states import LifecycleMode


def platform_could(mount: Mount) -> bool:
    """Whether InstanceStorageConfigs can express the mount; of OpenZFS it names no export but the root volume's."""
    return isinstance(mount, LustreMount) or (isinstance(mount, OpenZfsMount) and mount.export == "/fsx")


def decide_platform(
    mounts: Sequence[Mount], lifecycle_mode: str, groups: Sequence[Tuple[str, str]]
) -> Tuple[Mount, ...]:
    """The mounts with `platform` set where HyperPod makes them. `groups`: (name, role) of every instance group.

    In on_create mode it makes none. In the others it makes, in each instance group, one Lustre and one OpenZFS: the
    first of each that the configuration gives the group. A further one is ours.
    """
    theirs = set()
    if lifecycle_mode != LifecycleMode.ON_CREATE:
        for group, role in groups:
            theirs.update(first_of_platform(mounts, group, role))
    return tuple(
        replace(mount, platform=mount.name in theirs) if isinstance(mount, (LustreMount, OpenZfsMount)) else mount
        for mount in mounts
    )


def first_of_platform(mounts: Sequence[Mount], group: str, role: str) -> List[str]:
    """Names of the mounts that HyperPod would make in one instance group."""
    found: Dict[str, str] = {}
    for mount in mounts:
        if platform_could(mount) and carried_by(mount, role, group):
            found.setdefault(mount.kind, mount.name)
    return list(found.values())


def by_platform(mount: Mount) -> bool:
    """Whether HyperPod itself makes this mount on the nodes."""
    return isinstance(mount, (LustreMount, OpenZfsMount)) and mount.platform
