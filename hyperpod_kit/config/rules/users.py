"""The accounts that every node has."""

from __future__ import annotations

import re
from typing import Iterator

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.settings import Settings

USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
SYSTEM_NAMES = ("root", "daemon", "nobody", "slurm", "munge", "ubuntu", "sshd")
AT = "hyperpod_kit.users"


def accounts(settings: Settings) -> Iterator[Finding]:
    """Names and ids are legal, free and unique."""
    names: dict[str, int] = {}
    uids: dict[int, int] = {}
    for index, user in enumerate(settings.users):
        at = f"{AT}[{index}]"
        if not USER_NAME.fullmatch(user.name):
            yield Finding(
                "HPK-U001",
                f"{at}.name",
                f"`{user.name}` is not a user name",
                "Use up to 32 lower-case letters, digits, _ and -, a letter first",
            )
        elif user.name in SYSTEM_NAMES:
            yield Finding(
                "HPK-U002", f"{at}.name", f"`{user.name}` exists on every node already", "Choose another name"
            )
        elif user.name in names:
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
