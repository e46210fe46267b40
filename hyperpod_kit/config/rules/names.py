"""Mount names, roles and groups. A name becomes part of systemd unit names and of Slurm reasons."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Iterator

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.patterns import MOUNT_NAME
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.states import ROLES


def check_mount_names(settings: Settings) -> Iterator[Finding]:
    """Mount names are plain and unique."""
    first: dict[str, str] = {}
    for mount, at in settings.sourced_mounts:
        if not re.fullmatch(MOUNT_NAME, mount.name):
            yield Finding(
                "HPK-M001",
                f"{at}.name",
                f"`{mount.name}` is not a mount name",
                "Use 1 to 40 lower-case letters, digits and hyphens, no hyphen first",
            )
        elif mount.name in first:
            yield Finding(
                "HPK-M002",
                f"{at}.name",
                f"`{mount.name}` is the name of {first[mount.name]} too",
                "Rename one of them",
            )
        else:
            first[mount.name] = at


def check_mount_node_roles(settings: Settings) -> Iterator[Finding]:
    """A mount names at least one known role."""
    for mount, at in settings.sourced_mounts:
        for index, role in enumerate(mount.roles):
            if role not in ROLES:
                yield Finding("HPK-M003", f"{at}.roles[{index}]", f"`{role}` is not a role", f"Use {', '.join(ROLES)}")
        if not mount.roles:
            yield Finding(
                "HPK-M004",
                f"{at}.roles",
                "no role carries this mount",
                f"Use some of {', '.join(ROLES)}, or remove the key",
            )


def check_mount_groups(settings: Settings) -> Iterator[Finding]:
    """The instance groups that a mount names exist, and at least one of them has a role that carries it."""
    roles = {group.name: group.role for group in settings.cluster.groups}
    for mount, at in settings.sourced_mounts:
        missing_groups = [name for name in mount.groups if name not in roles]
        for name in missing_groups:
            near = get_close_matches(name, roles, 1, 0.6)
            if near:
                hint = f"Did you mean `{near[0]}`?"
            else:
                hint = f"Instance groups are: {', '.join(roles) or 'none'}"
            yield Finding(
                "HPK-M005",
                f"{at}.groups[{mount.groups.index(name)}]",
                f"there is no instance group `{name}`",
                hint,
            )
        if mount.groups and not missing_groups and not any(roles[name] in mount.roles for name in mount.groups):
            yield Finding(
                "HPK-M006",
                f"{at}.groups",
                f"no node carries this mount: none of its groups is {' or '.join(mount.roles)}",
                "Correct roles or groups",
            )
