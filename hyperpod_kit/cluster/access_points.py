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
DELETED_STATES = ("deleting", "deleted")


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
    def description(self) -> str:
        """Describe it in words."""
        who = "acts as whoever asks"
        if self.point.uid >= 0:
            who = f"acts as {self.point.uid}:{self.point.gid}"
        whose = ""
        if self.user:
            whose = f" ({self.point.owner_description})"
        return f"{self.id}{whose} {who} in {self.point.root}"


@dataclass(frozen=True)
class UserChange:
    """What happens for one user. `existing`: the access point that is kept; `detail`: why there is a conflict."""

    desired: AccessPoint
    action: str
    existing: Optional[ExistingPoint] = None
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        existing_id = ""
        if self.existing:
            existing_id = self.existing.id
        return {
            "user": self.desired.user,
            "action": self.action,
            "id": existing_id,
            "uid": self.desired.uid,
            "gid": self.desired.gid,
            "root": self.desired.root,
            "detail": self.detail,
        }


def parse_access_point(described: Mapping[str, Any]) -> ExistingPoint:
    """Parse one entry of DescribeAccessPoints. Without a POSIX user the uid is AS_WHO_ASKS, and the gid that of the
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


def plan_user_changes(
    desired: Sequence[AccessPoint], existing_points: Sequence[ExistingPoint]
) -> tuple[UserChange, ...]:
    """Plan one change a user, in their order."""
    alive = [existing for existing in existing_points if existing.state not in DELETED_STATES]
    return tuple(_plan_user_change(point, alive) for point in desired)


def find_access_points_of_removed_users(
    desired: Sequence[AccessPoint], existing_points: Sequence[ExistingPoint]
) -> tuple[ExistingPoint, ...]:
    """Return our access points whose users are no longer in the configuration.

    They stay, with their files.
    """
    users = {point.user for point in desired}
    return tuple(
        existing
        for existing in existing_points
        if existing.user and existing.user not in users and existing.state not in DELETED_STATES
    )


def create_access_point_request(point: AccessPoint) -> dict[str, Any]:
    """Return the CreateAccessPoint request for a home or a share.

    Its directory is made at the first mount: the user's alone, or root's and the group's.
    """
    home = point.uid != AS_WHO_ASKS
    kind, owner_uid = "share", 0
    if home:
        kind, owner_uid = "home", point.uid
    owner = {"OwnerUid": owner_uid, "OwnerGid": point.gid}
    arguments = {
        "ClientToken": client_token(point),
        "FileSystemId": point.file_system_id,
        "RootDirectory": {
            "Path": point.root,
            "CreationInfo": {**owner, "Permissions": point.octal_directory_mode},
        },
        "Tags": [
            {"Key": "Name", "Value": f"{kind} of {point.owner_description}"},
            {"Key": USER_TAG, "Value": point.user},
        ],
    }
    if home:
        return {**arguments, "PosixUser": {"Uid": point.uid, "Gid": point.gid}}
    return arguments


def client_token(point: AccessPoint) -> str:
    """Derive the same token for the same home, so that two admins at once make one access point.

    At most 64 characters.
    """
    text = "\0".join([point.file_system_id, point.user, str(point.uid), str(point.gid), point.root])
    return f"hpk-{hashlib.sha256(text.encode()).hexdigest()[:48]}"


def _plan_user_change(desired: AccessPoint, alive: Sequence[ExistingPoint]) -> UserChange:
    exact = [existing for existing in alive if existing.point.is_same_except_id(replace(desired, user=existing.user))]
    # One of ours before one that somebody else made, then the same one each time.
    for existing in sorted(exact, key=lambda existing: (existing.user != desired.user, existing.id)):
        if existing.user in ("", desired.user):
            return UserChange(desired, KEEP, existing)
    for existing in sorted(alive, key=lambda existing: existing.id):
        if existing.point.root == desired.root or existing.user == desired.user:
            configured = f"{desired.acting_uid_gid_description} in {desired.root}"
            return UserChange(desired, CONFLICT, detail=f"{existing.description}, the configuration says {configured}")
        if existing.user and existing.point.uid == desired.uid != AS_WHO_ASKS:
            return UserChange(
                desired, CONFLICT, detail=f"uid {desired.uid} is {existing.user}'s: {existing.description}"
            )
        if existing.user and existing.point.gid == desired.gid and AS_WHO_ASKS in (existing.point.uid, desired.uid):
            return UserChange(
                desired,
                CONFLICT,
                detail=f"gid {desired.gid} is {existing.point.owner_description}'s: {existing.description}",
            )
    return UserChange(desired, CREATE)
