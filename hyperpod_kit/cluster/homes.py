"""Make the homes' access points and the file system's policy what the configuration says.

observe -> Observed (reads only) -> require_possible -> apply: access points first, then the policy. The ids go into
the file beside the configuration last of all, and no bundle is made without them: so no node mounts a home before the
policy is in force.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

from hyperpod_kit.aws import policies
from hyperpod_kit.aws.efs import Efs
from hyperpod_kit.cluster import access_points
from hyperpod_kit.cluster.access_points import CONFLICT, CREATE, ExistingPoint, UserChange
from hyperpod_kit.config.access_points import AccessPoint
from hyperpod_kit.config.settings import Settings
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
            f"the configuration has no hyperpod_kit.{missing}: there are no access points to make",
            hint='add "homes": {"file_system_id": "fs-…"} and users (docs/users.md)',
        )
    file_system = efs.file_system(homes.file_system_id)
    if file_system["LifeCycleState"] != "available":
        raise ClusterError(f"{homes.file_system_id} is {file_system['LifeCycleState']}, not available")
    desired = homes.desired_access_points(settings.users, settings.groups)
    existing = [access_points.parse_access_point(point) for point in efs.access_points(homes.file_system_id)]
    return ObservedHomes(
        settings.cluster.name,
        settings.cluster.execution_role,
        file_system["FileSystemArn"],
        access_points.plan_user_changes(desired, existing),
        access_points.find_access_points_of_removed_users(desired, existing),
        efs.policy(homes.file_system_id),
    )


def require_no_conflicts_or_public_policy(observed: ObservedHomes, *, will_remove_public_statements: bool) -> None:
    """Raise ConfigError when access points contradict the configuration, or the policy would stay open."""
    if observed.conflicts:
        raise ConfigError(
            f"{observed.arn.rpartition('/')[2]} and the configuration disagree",
            findings=[f"{item.desired.owner_description}: {item.detail}" for item in observed.conflicts],
            hint="change the configuration back, or see docs/users.md for moving a user to other ids",
        )
    if observed.public_statement_names and not will_remove_public_statements:
        raise ConfigError(
            "the file system's policy lets clients without IAM in, whoever they are: any of them could mount a home",
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
            created = access_points.parse_access_point(
                efs.create_or_find_access_point(access_points.create_access_point_request(item.desired))
            )
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
        now = [access_points.parse_access_point(point) for point in efs.access_points(points[0].point.file_system_id)]
        return waiting - {point.id for point in now if point.state == "available"}

    sleep(0.5)
    unavailable = poll_until(
        query_unavailable, lambda ids: not ids, BackOff(1.0, 5.0), seconds=AVAILABLE_WITHIN, clock=clock, sleep=sleep
    )
    if unavailable:
        raise WaitTimeout(
            f"after {AVAILABLE_WITHIN:.0f} s not available: {', '.join(sorted(unavailable))}",
            hint="hyperpod-kit users apply, again",
        )
