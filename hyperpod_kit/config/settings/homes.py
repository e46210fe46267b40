"""Home directories of the users, and directories of groups beside them, on EFS: what the file says, and the mounts.

hyperpod_kit.homes + users + groups   what is wanted: one access point each
config/settings/access_points.py               which access point AWS gave to whom
-> one EfsMount each, like any other mount from here on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Sequence

from hyperpod_kit.config.settings.access_points import AS_WHO_ASKS, GROUP, AccessPoint
from hyperpod_kit.config.settings.section import Section
from hyperpod_kit.model.homes import home_mount_name, home_mount_path
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.node_config import User
from hyperpod_kit.model.shares import Group, share_mount_name, share_path
from hyperpod_kit.model.states import ROLES

HOMES_PATH = "hyperpod_kit.homes"

NO_ACCESS_POINT = "fsap-00000000000000000"
"""Stands in until `users apply` has run, so that everything else can be checked; nothing is rendered with it."""


@dataclass(frozen=True)
class Homes:
    """Where the homes are: `path`/<user> on the nodes, `directory`/<user> on the file system."""

    file_system_id: str
    path: str = "/home"
    directory: str = "/home"
    required: bool = True
    roles: tuple[str, ...] = ROLES

    def desired_access_points(self, users: Sequence[User], groups: Sequence[Group]) -> tuple[AccessPoint, ...]:
        """The access points of these users, then those of the groups that have one, without ids."""
        base = self.directory.rstrip("/")
        return (
            *(AccessPoint(user.name, self.file_system_id, user.uid, user.gid, f"{base}/{user.name}") for user in users),
            *(
                AccessPoint(
                    f"{GROUP}{group.name}", self.file_system_id, AS_WHO_ASKS, group.gid, share_path(base, group.name)
                )
                for group in groups_beside_homes(groups)
            ),
        )


def groups_beside_homes(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups whose directory lies beside the homes: no mounts of their own, and not archived."""
    return tuple(group for group in groups if not group.mounts and not group.archived)


def decode_homes(section: Section) -> Homes:
    """Decode `hyperpod_kit.homes`."""
    homes = Homes(
        section.read_text_or_report("file_system_id"),
        section.read_text_or_report("path", "/home"),
        section.read_text_or_report("directory", "/home"),
        section.read_boolean_or_report("required", True),
        section.read_texts_or_report("roles", ROLES),
    )
    section.report_unknown_keys()
    return homes


def home_and_share_mounts(
    homes: Optional[Homes], users: Sequence[User], groups: Sequence[Group], points_by_name: Mapping[str, AccessPoint]
) -> tuple[EfsMount, ...]:
    """Make one mount a user and one a group beside them, in their order. `points_by_name`: access points by name."""
    if homes is None:
        return ()
    of_users = [
        (home_mount_name(user.name, user.uid), home_mount_path(homes.path, user.name), user.name) for user in users
    ]
    of_groups = [
        (share_mount_name(group), share_path(homes.path, group.name), None) for group in groups_beside_homes(groups)
    ]
    return tuple(
        _home_or_share_mount(homes, name, path, owner, point, points_by_name.get(point.user))
        for (name, path, owner), point in zip([*of_users, *of_groups], homes.desired_access_points(users, groups))
    )


def _home_or_share_mount(
    homes: Homes, name: str, path: str, owner: Optional[str], desired: AccessPoint, recorded: Optional[AccessPoint]
) -> EfsMount:
    access_point_id = NO_ACCESS_POINT
    if recorded and recorded.is_same_except_id(desired):
        access_point_id = recorded.id
    return EfsMount(
        name=name,
        path=path,
        file_system_id=homes.file_system_id,
        access_point_id=access_point_id,
        tls=True,
        iam=True,
        owner=owner,
        required=homes.required,
        roles=homes.roles,
    )
