"""The accounts that every node has, and their homes on EFS."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.fields.fields import fits_field_pattern_if_any
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.homes import HOMES_PATH
from hyperpod_kit.config.settings.settings import Settings

SYSTEM_NAMES = (
    *("root", "daemon", "bin", "sys", "sync", "games", "man", "lp", "mail", "news", "uucp", "proxy", "www-data"),
    *("backup", "list", "irc", "gnats", "nobody", "_apt", "messagebus", "syslog", "sshd", "tss", "uuidd", "pollinate"),
    *("tcpdump", "landscape", "fwupd-refresh", "lxd", "polkitd", "dnsmasq", "statd", "_rpc", "sssd", "mysql"),
    *("slurm", "munge", "ubuntu", "nvidia-persistenced", "ec2-instance-connect", "cwagent", "prometheus"),
)
"""Of Debian, Ubuntu, HyperPod's images, and what steps of ours install."""

SYSTEM_PREFIX = "systemd-"
AT = "hyperpod_kit.users"

ROOT_LIMIT = 100
"""Characters that EFS allows in an access point's path."""


def check_user_names_and_ids(settings: Settings) -> Iterator[Finding]:
    """Names are free and unique, and so are ids, which are those of people."""
    names: dict[str, int] = {}
    uids: dict[int, int] = {}
    for index, user in enumerate(settings.users):
        at = f"{AT}[{index}]"
        if user.name in SYSTEM_NAMES or user.name.startswith(SYSTEM_PREFIX):
            yield Finding(
                "HPK-U002", f"{at}.name", f"`{user.name}` exists on every node already", "Choose another name"
            )
        elif user.name in names and fits_field_pattern_if_any(f"{AT}[].name", user.name):
            yield Finding(
                "HPK-U003", f"{at}.name", f"`{user.name}` is {AT}[{names[user.name]}] too", "Remove one of them"
            )
        for key, number in (("uid", user.uid), ("gid", user.gid)):
            if not 1000 < number <= 60000:
                yield Finding(
                    "HPK-U004",
                    f"{at}.{key}",
                    f"{number} is not an id of an ordinary user or group",
                    "Use 1001 to 60000: 1000 is ubuntu's",
                )
        if user.uid in uids:
            yield Finding(
                "HPK-U005",
                f"{at}.uid",
                f"{user.uid} is the uid of {AT}[{uids[user.uid]}] too",
                "Give each user its own",
            )
        names.setdefault(user.name, index)
        uids.setdefault(user.uid, index)


def check_gids_unique_and_home_paths_short(settings: Settings) -> Iterator[Finding]:
    """EFS takes paths of this length, and every user has a group of their own: it is what opens their home to them."""
    chosen = settings.homes
    if chosen is None:
        return
    groups: dict[int, int] = {}
    for index, user in enumerate(settings.users):
        if user.gid in groups:
            yield Finding(
                "HPK-U012",
                f"{AT}[{index}].gid",
                f"{user.gid} is the group of {AT}[{groups[user.gid]}] too: each would get into the other's home",
                "Give each user a group of their own",
            )
        groups.setdefault(user.gid, index)
    for point in chosen.desired_access_points(settings.users, settings.groups):
        if len(point.root) > ROOT_LIMIT:
            yield Finding(
                "HPK-U013",
                f"{HOMES_PATH}.directory",
                f"`{point.root}` has {len(point.root)} characters: EFS takes {ROOT_LIMIT}",
                "Choose a shorter directory",
            )


def check_no_mount_hides_home(settings: Settings) -> Iterator[Finding]:
    """What else is mounted hides no home."""
    chosen = settings.homes
    if chosen is None:
        return
    taken = {f"{chosen.path.rstrip('/')}/{user.name}": user.name for user in settings.users}
    for mount, at in settings.sourced_mounts:
        if mount.path in taken:
            yield Finding(
                "HPK-U014",
                f"{at}.path",
                f"`{mount.path}` is the home of `{taken[mount.path]}`",
                "Mount it somewhere else, or choose another homes.path",
            )
