"""EFS: file systems, mount targets, access points, and the policy that says whom a file system lets in."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.aws.efs import Efs
from hyperpod_kit.aws.policies import MOUNT, lets_in, open_statements
from hyperpod_kit.config.findings import WARNING, Finding
from hyperpod_kit.config.homes import NO_ACCESS_POINT, PLACE
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.errors import AwsError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.preflight.facts import (
    AccessPointFacts,
    AccountFacts,
    Answer,
    FileSystem,
    NotQueried,
    StorageEndpoint,
    known,
)
from hyperpod_kit.preflight.mounts.inquiry import MountInquiry, SharedService
from hyperpod_kit.preflight.need import Account, Carried, Need, sid_of
from hyperpod_kit.preflight.placement import RoleOf, roles
from hyperpod_kit.preflight.queries.client import QueryClient
from hyperpod_kit.preflight.queries.shared import FileSystemQuery, answer_for, with_groups

ONE_BY_ONE = 3
"""Up to so many access points are asked for by id; more come from one listing of their file system."""


def needs(carried: Carried, account: Account, role: RoleOf) -> Iterator[Need]:
    """EFS that is mounted with IAM. Homes and shares are not here: their file system's own policy lets the role in."""
    found: dict[str, None] = {}
    for mount, at in carried:
        arn = account.arn("elasticfilesystem", f"file-system/{mount.file_system_id}", mount.region)
        found.setdefault(arn)
        if not mount.iam or at == PLACE:
            continue
        through: dict[str, tuple[str, ...]] = {}
        if mount.access_point_id not in (None, NO_ACCESS_POINT):
            point = account.arn("elasticfilesystem", f"access-point/{mount.access_point_id}", mount.region)
            through = {"elasticfilesystem:AccessPointArn": (point,)}
        verbs = tuple(f"elasticfilesystem:Client{verb}" for verb in ("Mount", "Write"))
        yield Need(f"Mount{sid_of(mount.name)}", f"mount `{mount.name}`", at, verbs, (arn,), through)
    if found:
        yield Need(
            "FindMountTargets",
            "finding the mount targets of EFS where the name does not resolve",
            role.path,
            ("elasticfilesystem:DescribeMountTargets",),
            tuple(found),
            optional=True,
        )


def query(client: QueryClient, want: FileSystemQuery) -> Answer[Optional[FileSystem]]:
    """One EFS file system, None when there is no such one."""
    calls = client.service(Efs, want.region)
    described = client.ask(
        "elasticfilesystem:DescribeFileSystems",
        want.path,
        f"whether {want.id} is there",
        lambda: _or_none("FileSystemNotFound", lambda: calls.file_system(want.id)),
    )
    if described is None or isinstance(described, NotQueried):
        return described
    targets = client.ask(
        "elasticfilesystem:DescribeMountTargets",
        want.path,
        f"whether the nodes reach a mount target of {want.id}",
        lambda: calls.mount_targets(want.id),
    )
    policy = client.ask(
        "elasticfilesystem:DescribeFileSystemPolicy",
        want.path,
        f"whether the policy of {want.id} lets the nodes in",
        lambda: calls.policy(want.id),
    )
    return FileSystem(
        want.id,
        described["LifeCycleState"],
        described.get("AvailabilityZoneId"),
        targets if isinstance(targets, NotQueried) else tuple(_endpoint(client, calls, want, one) for one in targets),
        policy,
        _points(client, calls, want),
    )


def _endpoint(client: QueryClient, calls: Efs, want: FileSystemQuery, target: Mapping[str, Any]) -> StorageEndpoint:
    endpoint = StorageEndpoint(
        target["MountTargetId"],
        target["AvailabilityZoneId"],
        target["VpcId"],
        target.get("IpAddress", ""),
        (),
        target["LifeCycleState"] == "available",
    )
    return with_groups(
        client, "elasticfilesystem:DescribeMountTargetSecurityGroups", want, endpoint, calls.security_groups
    )


def _points(client: QueryClient, calls: Efs, want: FileSystemQuery) -> dict[str, Answer[Optional[AccessPointFacts]]]:
    action = "elasticfilesystem:DescribeAccessPoints"
    listed: Sequence[AccessPointFacts] = ()
    if len(want.points) > ONE_BY_ONE:
        answer = client.ask(
            action,
            want.path,
            f"whether the access points of {want.id} are there",
            lambda: [_point(entry) for entry in calls.access_points(want.id)],
        )
        if isinstance(answer, NotQueried):
            return dict.fromkeys(want.points, answer)
        listed = answer
    there: dict[str, Answer[Optional[AccessPointFacts]]] = {point.id: point for point in listed}
    for point in want.points:
        if point not in there:
            there[point] = client.ask(
                action,
                want.path,
                f"whether access point {point} is there",
                lambda point=point: _point(calls.access_point(point)),  # type: ignore[misc]
            )
    return {point: there[point] for point in want.points}


def _point(entry: Optional[Mapping[str, Any]]) -> Any:
    if entry is None:
        return None
    return AccessPointFacts(
        entry["AccessPointId"], entry["FileSystemId"], entry.get("LifeCycleState", "available") == "available"
    )


def _or_none(code: str, call: Any) -> Any:
    """`call()`, or None when AWS answers with `code`."""
    try:
        return call()
    except AwsError as err:
        if err.code != code:
            raise
        return None


def policy(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """A file system with a policy lets these mounts in: homes by the nodes' role, those without IAM as anybody."""
    for mount, at in settings.written(EfsMount):
        system = answer_for(settings, facts, mount)
        said = known(system.policy) if system else None
        if said is None:
            continue
        if at == PLACE:
            for role in roles(settings):
                if any(mount.carried_by(group.role, group.name) for group in role.groups) and not lets_in(
                    said, role.arn, MOUNT
                ):
                    yield Finding(
                        "HPK-V410",
                        role.path,
                        f"the policy of {mount.file_system_id} does not let {role.arn} mount homes",
                        "hyperpod-kit users apply puts a policy that lets the cluster's role in",
                    )
        elif not mount.iam and not open_statements(said):
            let_in = any(lets_in(said, role.arn, MOUNT) for role in roles(settings))
            yield Finding(
                "HPK-V409",
                f"{at}.iam",
                f"the policy of {mount.file_system_id} lets nobody in without IAM, and the mount does without",
                "Set iam to true" + ("" if let_in else ", and let the role in"),
            )


def closed(settings: Settings, facts: AccountFacts) -> Iterator[Finding]:
    """Not everybody in the network is root of a file system: its policy asks clients for IAM."""
    seen = set()
    for mount, at in settings.written(EfsMount):
        system = answer_for(settings, facts, mount)
        if system is None or isinstance(system.policy, NotQueried) or system.id in seen:
            continue
        seen.add(system.id)
        open_to_all = open_statements(system.policy)
        if system.policy is not None and not open_to_all:
            continue
        why = f"its policy lets everybody in ({open_to_all[0]})" if open_to_all else "it has no policy"
        yield Finding(
            "HPK-V411",
            at if at == PLACE else f"{at}.file_system_id",
            f"{system.id}: {why}: who reaches it over the network mounts it, as anybody he says he is, root included",
            "Give it a policy that lets only the nodes' role in (ClientMount, ClientWrite), and set iam to true",
            WARNING,
        )


KIND = MountInquiry(
    needs=needs,
    shared=SharedService("EFS", "efs", "aws efs describe-file-systems", query),
    fsx=None,
    bucket=None,
    checks=(policy, closed),  # HPK-V4
)
