"""Whose an FSx mount is: HyperPod's or ours."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model import platform


def check_platform_mounts_same_in_all_groups(settings: Settings) -> Iterator[Finding]:
    """HyperPod makes one FSx mount of a kind in a group: a mount is HyperPod's in all its groups, or ours in all."""
    for mount, at in settings.all_mounts_with_platform_flag:
        if not mount.platform:
            continue
        carriers = [group for group in settings.cluster.groups if mount.is_carried_by(group.role, group.name)]
        for group in carriers:
            if mount.name not in platform.platform_mount_names(settings.mounts, group.name, group.role):
                yield Finding(
                    "HPK-F006",
                    at,
                    f"HyperPod would mount `{mount.name}` itself in some of its groups, but in `{group.name}` "
                    f"another one of its kind",
                    "List the mount that all groups share first, or use on_create mode",
                )
                break
