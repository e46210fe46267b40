"""Make the homes' access points and the file system's policy what the configuration says.

observe -> Observed (reads only) -> require_possible -> apply: access points first, then the policy. The ids go into
the file beside the configuration last of all, and no bundle is made without them: so no node mounts a home before the
policy is in force.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping, Optional, Sequence

from hyperpod_kit.aws import policies
from hyperpod_kit.aws.efs import Efs
from hyperpod_kit.config.settings.access_points import AS_WHO_ASKS, AccessPoint
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.errors import ClusterError, ConfigError, UsageError, WaitTimeout
from hyperpod_kit.system.wait import BackOff, poll_until

AVAILABLE_WITHIN = 120.0
"""Seconds in which a new access point must be usable; AWS names no figure, it is usually one or two."""


@dataclass(frozen=True)
class ObservedHomes:
    """What there is and what follows. `policy`: the one in force, None for AWS's default; `role`: of the nodes."""

    cluster: str
    role: str
    arn: str
    items: tuple[UserChange, ...]
    orphans: tuple[ExistingPoint, ...]
    policy: Optional[dict[str, Any]]

    @property
    def conflicts(self) -> tuple[UserChange, ...]:
        return tuple(item for item in self.items if item.action == CONFLICT)

    @property
    def missing_access_points(self) -> tuple[UserChange, ...]:
        return tuple(item for item in self.items if item.action == CREATE)

    @property
    def public_statement_names(self) -> list[str]:
        """Statements of others that let clients mount without an IAM identity."""
        return policies.public_statement_names(self.policy)

    def desired_policy(self) -> dict[str, Any]:
        """The policy for the access points that are there. Raises ConfigError when it is too long."""
        return policies.merge_cluster_into_file_system_policy(
            cluster=self.cluster,
            file_system_arn=self.arn,
            role_arn=self.role,
            access_point_arns=self.existing_access_point_arns,
            existing=policies.without_public_statements(self.policy),
        )

    @property
    def existing_access_point_arns(self) -> list[str]:
        """List the ARNs of the access points that exist."""
        return [item.existing.arn for item in self.items if item.existing]

    @property
    def is_complete_with_policy_in_force(self) -> bool:
        """Whether nothing is missing and the policy in force is the wanted one."""
        return not self.missing_access_points and policies.are_policies_equivalent(self.policy, self.desired_policy())


def observe_homes_and_plan_changes(efs: Efs, settings: Settings) -> ObservedHomes:
    """Read access points and policy of the homes' file system, and plan the changes; changes nothing.

    Raises UsageError, ClusterError, AwsError, Unreachable.
    """
    homes = settings.homes
    if homes is None or not settings.users:
        missing = "homes"
        if homes:
            missing = "users"
        raise UsageError(
            f"the configuration has no hyperpod_kit.{missing}: no access points to create",
            hint='add "homes": {"file_system_id": "fs-…"} and users',
        )
    file_system = efs.file_system(homes.file_system_id)
    if file_system["LifeCycleState"] != "available":
        raise ClusterError(f"{homes.file_system_id} is {file_system['LifeCycleState']}, not available")
    desired = homes.desired_access_points(settings.users, settings.groups)
    existing = [parse_access_point(point) for point in efs.access_points(homes.file_system_id)]
    return ObservedHomes(
        settings.cluster.name,
        settings.cluster.execution_role,
        file_system["FileSystemArn"],
        plan_user_changes(desired, existing),
        find_access_points_of_removed_users(desired, existing),
        efs.policy(homes.file_system_id),
    )


def require_no_conflicts_or_public_policy(observed: ObservedHomes, *, will_remove_public_statements: bool) -> None:
    """Raise ConfigError when access points contradict the configuration, or the policy would stay open."""
    if observed.conflicts:
        raise ConfigError(
            f"{observed.arn.rpartition('/')[2]} and the configuration disagree",
            findings=[f"{item.desired.owner_description}: {item.detail}" for item in observed.conflicts],
            hint="change the configuration back, or move the user to other ids, see `Users and home directories`",
        )
    if observed.public_statement_names and not will_remove_public_statements:
        raise ConfigError(
            "the file system's policy allows clients without an IAM identity: any such client could mount a home",
            findings=[f"statement {name}" for name in observed.public_statement_names],
            hint="remove them, or: hyperpod-kit users apply --remove-open-statements",
        )


def create_access_points_and_put_policy(
    efs: Efs,
    observed: ObservedHomes,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ObservedHomes:
    """Create the missing access points, wait until they are available, and put the policy; return the new
    state.

    Raises WaitTimeout, ConfigError, AwsError, Unreachable. What was done stays: running it again goes
    on from there.
    """
    items = list(observed.items)
    for index, item in enumerate(items):
        if item.action == CREATE:
            created = parse_access_point(efs.create_or_find_access_point(create_access_point_request(item.desired)))
            items[index] = replace(item, existing=created)
    _wait_until_available(efs, [item.existing for item in items if item.existing], clock, sleep)
    updated = replace(observed, items=tuple(items))
    policy = updated.desired_policy()
    if not policies.are_policies_equivalent(observed.policy, policy):
        efs.put_policy(items[0].desired.file_system_id, policies.to_compact_json(policy))
    return replace(updated, policy=policy)


def access_points_to_record(observed: ObservedHomes) -> list[AccessPoint]:
    """Return the access points with their ids, for the file beside the configuration."""
    return [replace(item.desired, id=item.existing.id) for item in observed.items if item.existing]


def _wait_until_available(
    efs: Efs, points: list[ExistingPoint], clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    waiting = {point.id for point in points if point.state != "available"}
    if not waiting:
        return

    def query_unavailable() -> set[str]:
        now = [parse_access_point(point) for point in efs.access_points(points[0].point.file_system_id)]
        return waiting - {point.id for point in now if point.state == "available"}

    sleep(0.5)
    unavailable = poll_until(
        query_unavailable, lambda ids: not ids, BackOff(1.0, 5.0), seconds=AVAILABLE_WITHIN, clock=clock, sleep=sleep
    )
    if unavailable:
        raise WaitTimeout(
            f"not available after {AVAILABLE_WITHIN:.0f} s: {', '.join(sorted(unavailable))}",
            hint="run hyperpod-kit users apply again",
        )


# Which access points there must be, which there are, and what follows: pure, from two lists to a plan.
#
# An access point cannot be changed, and its directory is made, with its owner, when it is first mounted. So one that
# differs from the configuration is never replaced here: that would give files to another number, or hide them.

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
        who = "acts as the calling user"
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
            return UserChange(
                desired, CONFLICT, detail=f"{existing.description}, but the configuration has {configured}"
            )
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
