"""EFS: file systems, mount targets, access points, and the policy that says whom a file system lets in."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.aws.efs import Efs
from hyperpod_kit.aws.policies import MOUNT, has_allow_statement, public_statement_names
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.homes import HOMES_PATH, NO_ACCESS_POINT
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.errors import AwsError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import (
    AccessPointFacts,
    AccountFacts,
    FileSystem,
    NotQueried,
    Queried,
    StorageEndpoint,
    value_or_none,
)
from hyperpod_kit.preflight.mounts.inquiry import MountInquiry, SharedService
from hyperpod_kit.preflight.mounts.shared_file_systems import (
    FileSystemQuery,
    file_system_facts,
    with_fetched_security_groups,
)
from hyperpod_kit.preflight.permission import Account, Carried, Permission, sid_part_from_name
from hyperpod_kit.preflight.placement import NodeRole, execution_roles

ONE_BY_ONE = 3
"""Up to so many access points are asked for by id; more come from one listing of their file system."""


def required_role_permissions(carried: Carried, account: Account, role: NodeRole) -> Iterator[Permission]:
    """Yield the permissions for EFS that is mounted with IAM, and to find mount targets.

    Homes and shares are not here: their file system's own policy lets the role in.
    """
    arns: dict[str, None] = {}
    for mount, at in carried:
        arn = account.arn("elasticfilesystem", f"file-system/{mount.file_system_id}", mount.region)
        arns.setdefault(arn)
        if not mount.iam or at == HOMES_PATH:
            continue
        context: dict[str, tuple[str, ...]] = {}
        if mount.access_point_id not in (None, NO_ACCESS_POINT):
            point = account.arn("elasticfilesystem", f"access-point/{mount.access_point_id}", mount.region)
            context = {"elasticfilesystem:AccessPointArn": (point,)}
        verbs = tuple(f"elasticfilesystem:Client{verb}" for verb in ("Mount", "Write"))
        yield Permission(f"Mount{sid_part_from_name(mount.name)}", f"mount `{mount.name}`", at, verbs, (arn,), context)
    if arns:
        yield Permission(
            "FindMountTargets",
            "finding the mount targets of EFS if the DNS name does not resolve",
            role.path,
            ("elasticfilesystem:DescribeMountTargets",),
            tuple(arns),
            optional=True,
        )


def fetch_file_system(client: QueryClient, requested: FileSystemQuery) -> Queried[Optional[FileSystem]]:
    """Describe one EFS file system, None when there is no such one."""
    calls = client.service_client(Efs, requested.region)
    described = client.query_or_record_failure(
        "elasticfilesystem:DescribeFileSystems",
        requested.path,
        f"whether {requested.id} exists",
        lambda: _none_on_error_code("FileSystemNotFound", lambda: calls.file_system(requested.id)),
    )
    if described is None or isinstance(described, NotQueried):
        return described
    targets = client.query_or_record_failure(
        "elasticfilesystem:DescribeMountTargets",
        requested.path,
        f"whether the nodes can reach a mount target of {requested.id}",
        lambda: calls.mount_targets(requested.id),
    )
    policy = client.query_or_record_failure(
        "elasticfilesystem:DescribeFileSystemPolicy",
        requested.path,
        f"whether the policy of {requested.id} admits the nodes",
        lambda: calls.policy(requested.id),
    )
    endpoints: Queried[tuple[StorageEndpoint, ...]]
    if isinstance(targets, NotQueried):
        endpoints = targets
    else:
        endpoints = tuple(_fetch_endpoint(client, calls, requested, target) for target in targets)
    return FileSystem(
        requested.id,
        described["LifeCycleState"],
        described.get("AvailabilityZoneId"),
        endpoints,
        policy,
        _fetch_access_points(client, calls, requested),
    )


def _fetch_endpoint(
    client: QueryClient, calls: Efs, requested: FileSystemQuery, target: Mapping[str, Any]
) -> StorageEndpoint:
    endpoint = StorageEndpoint(
        target["MountTargetId"],
        target["AvailabilityZoneId"],
        target["VpcId"],
        target.get("IpAddress", ""),
        (),
        target["LifeCycleState"] == "available",
    )
    return with_fetched_security_groups(
        client,
        "elasticfilesystem:DescribeMountTargetSecurityGroups",
        requested,
        endpoint,
        calls.mount_target_security_group_ids,
    )


def _fetch_access_points(
    client: QueryClient, calls: Efs, requested: FileSystemQuery
) -> dict[str, Queried[Optional[AccessPointFacts]]]:
    action = "elasticfilesystem:DescribeAccessPoints"
    listed: Sequence[AccessPointFacts] = ()
    if len(requested.points) > ONE_BY_ONE:
        listing = client.query_or_record_failure(
            action,
            requested.path,
            f"whether the access points of {requested.id} exist",
            lambda: [_parse_access_point(entry) for entry in calls.access_points(requested.id)],
        )
        if isinstance(listing, NotQueried):
            return dict.fromkeys(requested.points, listing)
        listed = listing
    points_by_id: dict[str, Queried[Optional[AccessPointFacts]]] = {point.id: point for point in listed}
    for point in requested.points:
        if point not in points_by_id:
            points_by_id[point] = client.query_or_record_failure(
                action,
                requested.path,
                f"whether access point {point} exists",
                lambda point=point: _parse_access_point(calls.access_point(point)),  # type: ignore[misc]
            )
    return {point: points_by_id[point] for point in requested.points}


def _parse_access_point(entry: Optional[Mapping[str, Any]]) -> Any:
    if entry is None:
        return None
    return AccessPointFacts(
        entry["AccessPointId"], entry["FileSystemId"], entry.get("LifeCycleState", "available") == "available"
    )


def _none_on_error_code(code: str, call: Any) -> Any:
    """Return what `call` returns, None when AWS answers with the error `code`."""
    try:
        return call()
    except AwsError as err:
        if err.code != code:
            raise
        return None


def check_policy_admits_mounts(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Check that a file system with a policy lets these mounts in: homes by the nodes' role, those without IAM
    as anybody."""
    for mount, at in settings.mounts_of_kind(EfsMount):
        system = file_system_facts(settings, facts, mount)
        document = None
        if system:
            document = value_or_none(system.policy)
        if document is None:
            continue
        if at == HOMES_PATH:
            for role in execution_roles(settings):
                if any(
                    mount.is_carried_by(group.role, group.name) for group in role.groups
                ) and not has_allow_statement(document, role.arn, MOUNT):
                    yield Finding(
                        "HPK-V410",
                        role.path,
                        f"the policy of {mount.file_system_id} does not allow {role.arn} to mount homes",
                        "hyperpod-kit users apply sets a policy that admits the cluster's role",
                    )
        elif not mount.iam and not public_statement_names(document):
            let_in = any(has_allow_statement(document, role.arn, MOUNT) for role in execution_roles(settings))
            advice = ", and allow the role in the policy"
            if let_in:
                advice = ""
            yield Finding(
                "HPK-V409",
                f"{at}.iam",
                f"the policy of {mount.file_system_id} requires IAM, but the mount does not use IAM",
                "Set iam to true" + advice,
            )


def check_policy_admits_only_iam_clients(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Warn of each file system that everybody in the network can mount as root: its policy does not ask clients
    for IAM."""
    checked_ids = set()
    for mount, at in settings.mounts_of_kind(EfsMount):
        system = file_system_facts(settings, facts, mount)
        if system is None or isinstance(system.policy, NotQueried) or system.id in checked_ids:
            continue
        checked_ids.add(system.id)
        open_to_all = public_statement_names(system.policy)
        if system.policy is not None and not open_to_all:
            continue
        reason = "it has no policy"
        if open_to_all:
            reason = f"its policy allows every client ({open_to_all[0]})"
        if at == HOMES_PATH:
            path = at
        else:
            path = f"{at}.file_system_id"
        yield Finding(
            "HPK-V411",
            path,
            f"{system.id}: {reason}: anybody who can reach it over the network can mount it and act as any "
            "user, root included",
            "Give it a policy that allows only the nodes' role (ClientMount, ClientWrite), and set iam to true",
            WARNING,
        )


KIND = MountInquiry(
    permissions=required_role_permissions,
    shared=SharedService("EFS", "efs", "aws efs describe-file-systems", fetch_file_system),
    fsx=None,
    bucket=None,
    checks=(check_policy_admits_mounts, check_policy_admits_only_iam_clients),  # HPK-V4
)
