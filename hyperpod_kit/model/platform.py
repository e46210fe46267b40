"""Which FSx mounts HyperPod makes by itself: those must never be mounted a second time.

In on_create mode it makes none. In on_init_complete and ami_only mode it makes, in each instance group, what
InstanceStorageConfigs names: at most one Lustre and one OpenZFS.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import LifecycleMode


def mark_platform_mounts(
    mounts: Sequence[Mount], lifecycle_mode: str, groups: Sequence[Tuple[str, str]]
) -> Tuple[Mount, ...]:
    """The mounts with `platform` set where HyperPod makes them. `groups`: (name, role) of every instance group.

    In on_create mode it makes none. In the others it makes, in each instance group, one Lustre and one OpenZFS: the
    first of each that the configuration gives the group. A further one is ours.
    """
    platform_names = set()
    if lifecycle_mode != LifecycleMode.ON_CREATE:
        for group, role in groups:
            platform_names.update(platform_mount_names(mounts, group, role))
    return tuple(
        replace(mount, platform=mount.name in platform_names) if mount.traits.storage_config else mount  # type: ignore[type-var]
        for mount in mounts
    )


def platform_mount_names(mounts: Sequence[Mount], group: str, role: str) -> List[str]:
    """Names of the mounts that HyperPod would make in one instance group."""
    names_by_kind: Dict[str, str] = {}
    for mount in mounts:
        if mount.platform_can_mount() and mount.is_carried_by(role, group):
            names_by_kind.setdefault(mount.kind, mount.name)
    return list(names_by_kind.values())
