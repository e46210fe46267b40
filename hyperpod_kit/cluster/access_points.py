"""Which access points there must be, which there are, and what follows: pure, from two lists to a plan.

An access point cannot be changed, and its directory is made, with its owner, when it is first mounted. So one that
differs from the configuration is never replaced here: that would give files to another number, or hide them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Mapping, Optional, Sequence

from hyperpod_kit.config.access_points import AccessPoint

USER_TAG = "hyperpod-kit:user"
KEEP, CREATE, CONFLICT = "keep", "create", "conflict"
GONE = ("deleting", "deleted")


@dataclass(frozen=True)
class ExistingPoint:
    """An access point of the file system. `user`: whose home it is by its tag, "" for one that is not ours."""

    point: AccessPoint
    arn: str
    state: str

    @property
    def id(self) -> str:
        return self.point.id

    @property
    def user(self) -> str:
        return self.point.user

    @property
    def does(self) -> str:
        """In words."""
        who = f"acts as {self.point.uid}:{self.point.gid}" if self.point.uid >= 0 else "acts as whoever asks"
        return f"{self.id}{f' ({self.user})' if self.user else ''} {who} in {self.point.root}"


@dataclass(frozen=True)
class UserChange:
    """What happens for one user. `found`: the access point that is kept; `detail`: why there is a conflict."""

    wanted: AccessPoint
    action: str
    found: Optional[ExistingPoint] = None
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "user": self.wanted.user,
            "action": self.action,
            "id": self.found.id if self.found else "",
            "uid": self.wanted.uid,
            "gid": self.wanted.gid,
            "root": self.wanted.root,
            "detail": self.detail,
        }


def read(described: Mapping[str, Any]) -> ExistingPoint:
    """One entry of DescribeAccessPoints. Without a POSIX user uid and gid are -1."""
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
    user = described.get("PosixUser") or {}
    root = (described.get("RootDirectory") or {}).get("Path", "/")
    point = AccessPoint(
        tags.get(USER_TAG, ""),
        described["FileSystemId"],
        user.get("Uid", -1),
        user.get("Gid", -1),
        root,
        described["AccessPointId"],
    )
    return ExistingPoint(point, described["AccessPointArn"], described.get("LifeCycleState", "available"))


def plan(wanted: Sequence[AccessPoint], there: Sequence[ExistingPoint]) -> tuple[UserChange, ...]:
    """One item a user, in their order."""
    alive = [found for found in there if found.state not in GONE]
    return tuple(_item(point, alive) for point in wanted)


def orphans(wanted: Sequence[AccessPoint], there: Sequence[ExistingPoint]) -> tuple[ExistingPoint, ...]:
    """Access points of ours whose users are no longer in the configuration. They stay, with their files."""
    users = {point.user for point in wanted}
    return tuple(found for found in there if found.user and found.user not in users and found.state not in GONE)


def request(point: AccessPoint) -> dict[str, Any]:
    """CreateAccessPoint for a home: its directory is made at the first mount, the user's alone."""
    return {
        "ClientToken": client_token(point),
        "FileSystemId": point.file_system_id,
        "PosixUser": {"Uid": point.uid, "Gid": point.gid},
        "RootDirectory": {
            "Path": point.root,
            "CreationInfo": {"OwnerUid": point.uid, "OwnerGid": point.gid, "Permissions": "0700"},
        },
        "Tags": [{"Key": "Name", "Value": f"home of {point.user}"}, {"Key": USER_TAG, "Value": point.user}],
    }


def client_token(point: AccessPoint) -> str:
    """The same for the same home, so that two admins at once make one access point. At most 64 characters."""
    text = "\0".join([point.file_system_id, point.user, str(point.uid), str(point.gid), point.root])
    return f"hpk-{hashlib.sha256(text.encode()).hexdigest()[:48]}"


def _item(wanted: AccessPoint, alive: Sequence[ExistingPoint]) -> UserChange:
    exact = [found for found in alive if found.point.same_as(replace(wanted, user=found.user))]
    # One of ours before one that somebody else made, then the same one each time.
    for found in sorted(exact, key=lambda found: (found.user != wanted.user, found.id)):
        if found.user in ("", wanted.user):
            return UserChange(wanted, KEEP, found)
    for found in sorted(alive, key=lambda found: found.id):
        if found.point.root == wanted.root or found.user == wanted.user:
            ours = f"{wanted.uid}:{wanted.gid} in {wanted.root}"
            return UserChange(wanted, CONFLICT, detail=f"{found.does}, the configuration says {ours}")
        if found.user and found.point.uid == wanted.uid:
            return UserChange(wanted, CONFLICT, detail=f"uid {wanted.uid} is {found.user}'s: {found.does}")
    return UserChange(wanted, CREATE)
