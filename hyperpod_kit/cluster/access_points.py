"""Which access points there must be, which there are, and what follows: pure, from two lists to a plan.

An access point cannot be changed, and its directory is made, with its owner, when it is first mounted. So one that
differs from the configuration is never replaced here: that would give files to another number, or hide them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Mapping, Optional, Sequence

from hyperpod_kit.config.access_points import AS_WHO_ASKS, AccessPoint

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
        return f"{self.id}{f' ({self.point.whose})' if self.user else ''} {who} in {self.point.root}"


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
    """One entry of DescribeAccessPoints. Without a POSIX user the uid is AS_WHO_ASKS, and the gid that of the
    directory, -1 where that was there before."""
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
    directory = described.get("RootDirectory") or {}
    made = {"Uid": AS_WHO_ASKS, "Gid": (directory.get("CreationInfo") or {}).get("OwnerGid", -1)}
    user = described.get("PosixUser") or made
    root = directory.get("Path", "/")
    point = AccessPoint(
        tags.get(USER_TAG, ""),
        described["FileSystemId"],
        user["Uid"],
        user["Gid"],
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
    """CreateAccessPoint for a home or a share. Its directory is made at the first mount: the user's alone, or root's
    and the group's."""
    home = point.uid != AS_WHO_ASKS
    owner = {"OwnerUid": point.uid if home else 0, "OwnerGid": point.gid}
    wanted = {
        "ClientToken": client_token(point),
        "FileSystemId": point.file_system_id,
        "RootDirectory": {
            "Path": point.root,
            "CreationInfo": {**owner, "Permissions": point.permissions},
        },
        "Tags": [
            {"Key": "Name", "Value": f"{'home' if home else 'share'} of {point.whose}"},
            {"Key": USER_TAG, "Value": point.user},
        ],
    }
    return {**wanted, "PosixUser": {"Uid": point.uid, "Gid": point.gid}} if home else wanted


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
            ours = f"{wanted.numbers} in {wanted.root}"
            return UserChange(wanted, CONFLICT, detail=f"{found.does}, the configuration says {ours}")
        if found.user and found.point.uid == wanted.uid != AS_WHO_ASKS:
            return UserChange(wanted, CONFLICT, detail=f"uid {wanted.uid} is {found.user}'s: {found.does}")
        if found.user and found.point.gid == wanted.gid and AS_WHO_ASKS in (found.point.uid, wanted.uid):
            return UserChange(wanted, CONFLICT, detail=f"gid {wanted.gid} is {found.point.whose}'s: {found.does}")
    return UserChange(wanted, CREATE)
