"""Home directories of the users on EFS: what the file says, and the mounts that follow.

hyperpod_kit.homes + hyperpod_kit.users   what is wanted: one access point a user
config/access_points.py                   which access point AWS gave to whom
-> one EfsMount a user, like any other mount from here on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Sequence

from hyperpod_kit.config.access_points import AccessPoint
from hyperpod_kit.config.section import Section
from hyperpod_kit.model.homes import mount_name, mount_path
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.node_config import User
from hyperpod_kit.model.states import ROLES

PLACE = "hyperpod_kit.homes"

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

    def wanted(self, users: Sequence[User]) -> tuple[AccessPoint, ...]:
        """The access points of these users, without ids."""
        base = self.directory.rstrip("/")
        return tuple(
            AccessPoint(user.name, self.file_system_id, user.uid, user.gid, f"{base}/{user.name}") for user in users
        )


def decode_homes(section: Section) -> Homes:
    """`hyperpod_kit.homes`."""
    homes = Homes(
        section.text("file_system_id"),
        section.text("path", "/home"),
        section.text("directory", "/home"),
        section.boolean("required", True),
        section.texts("roles", ROLES),
    )
    section.close()
    return homes


def home_mounts(
    homes: Optional[Homes], users: Sequence[User], known: Mapping[str, AccessPoint]
) -> tuple[EfsMount, ...]:
    """One mount a user, in the order of the users. `known`: access points by user name."""
    if homes is None:
        return ()
    return tuple(_mount(homes, point, known.get(point.user)) for point in homes.wanted(users))


def _mount(homes: Homes, wanted: AccessPoint, known: Optional[AccessPoint]) -> EfsMount:
    return EfsMount(
        name=mount_name(wanted.user, wanted.uid),
        path=mount_path(homes.path, wanted.user),
        file_system_id=homes.file_system_id,
        access_point_id=known.id if known and known.same_as(wanted) else NO_ACCESS_POINT,
        tls=True,
        iam=True,
        owner=wanted.user,
        required=homes.required,
        roles=homes.roles,
    )
