"""Groups of users, and the directories that they share."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.rules.users import SYSTEM_NAMES
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings

AT = "hyperpod_kit.groups"

FROM, TO = 1001, 60000


def check_names_and_gids(settings: Settings) -> Iterator[Finding]:
    """Names and ids are nobody else's: each user has a group of the same name, whose id opens their home."""
    names = {name: "exists on every node already" for name in SYSTEM_NAMES}
    names.update({user.name: "is a user, who has a group of that name" for user in settings.users})
    gids = {user.gid: f"is the group of the user `{user.name}`" for user in settings.users}
    for index, group in enumerate(settings.groups):
        if group.name in names:
            yield Finding(
                "HPK-U031", f"{AT}[{index}].name", f"`{group.name}` {names[group.name]}", "Choose another name"
            )
        if not FROM <= group.gid <= TO:
            yield Finding(
                "HPK-U032",
                f"{AT}[{index}].gid",
                f"{group.gid} is not an id of an ordinary group",
                f"Use {FROM} to {TO}",
            )
        elif group.gid in gids:
            yield Finding("HPK-U036", f"{AT}[{index}].gid", f"{group.gid} {gids[group.gid]}", "Give each group its own")
        names.setdefault(group.name, f"is {AT}[{index}] too")
        gids.setdefault(group.gid, f"is the gid of {AT}[{index}] too")


def check_members(settings: Settings) -> Iterator[Finding]:
    """Members are users, and none once the group is archived."""
    user_names = {user.name for user in settings.users}
    for index, group in enumerate(settings.groups):
        for position, name in enumerate(group.members):
            if name not in user_names:
                yield Finding(
                    "HPK-U033",
                    f"{AT}[{index}].members[{position}]",
                    f"`{name}` is none of hyperpod_kit.users",
                    "Add the user, or remove the member",
                )
        if group.archived and group.members:
            yield Finding(
                "HPK-U034",
                f"{AT}[{index}].members",
                f"`{group.name}` is archived: nobody can access its directory",
                "Remove the members, or `archived`",
            )


def check_mounts_hold_shares(settings: Settings) -> Iterator[Finding]:
    """A share is on a file system that tells users apart."""
    by_name = {mount.name: mount for mount in settings.mounts}
    for index, group in enumerate(settings.groups):
        for position, name in enumerate(group.mounts):
            at = f"{AT}[{index}].mounts[{position}]"
            mount = by_name.get(name)
            if mount is None or not mount.traits.holds_shares:
                if mount is None:
                    what = "no mount"
                else:
                    what = f"of kind {mount.kind}"
                able = sorted(candidate.name for candidate in settings.mounts if candidate.traits.holds_shares)
                hint = "Leave `mounts` out, and configure homes"
                if able:
                    hint = f"Use one of: {', '.join(able)}"
                yield Finding(
                    "HPK-U035",
                    at,
                    f"`{name}` is {what}: a directory of a group is on lustre or openzfs, or beside the homes",
                    hint,
                )


def check_archived_groups_name_mounts(settings: Settings) -> Iterator[Finding]:
    """What closes the directory of an archived group must know where it is."""
    able = [mount.name for mount in settings.mounts if mount.traits.holds_shares]
    for index, group in enumerate(settings.groups):
        if group.archived and not group.mounts and settings.homes is None and able:
            yield Finding(
                "HPK-U037",
                f"{AT}[{index}]",
                f"`{group.name}` is archived without `mounts`: a directory of it on {', '.join(able)} stays open",
                "Keep the `mounts` that it had",
                severity=WARNING,
            )
