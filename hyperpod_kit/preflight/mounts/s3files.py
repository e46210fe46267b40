"""S3 Files: file systems, mount targets and access points."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional

from hyperpod_kit.aws.s3files import S3Files
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import AccessPointFacts, FileSystem, NotQueried, Queried, StorageEndpoint
from hyperpod_kit.preflight.mounts.inquiry import MountInquiry, SharedService
from hyperpod_kit.preflight.mounts.shared_file_systems import FileSystemQuery, with_fetched_security_groups
from hyperpod_kit.preflight.permission import Account, Carried, Permission, sid_part_from_name
from hyperpod_kit.preflight.placement import NodeRole


def required_role_permissions(carried: Carried, account: Account, role: NodeRole) -> Iterator[Permission]:
    """Yield the permissions to mount S3 Files, which always asks IAM.

    The configuration does not know its bucket, so direct reads of it are not here.
    """
    for mount, at in carried:
        arn = account.arn("s3files", f"file-system/{mount.file_system_id}", mount.region)
        context: dict[str, tuple[str, ...]] = {}
        if mount.access_point_id is not None:
            context = {"s3files:AccessPointArn": (f"{arn}/access-point/{mount.access_point_id}",)}
        verbs = tuple(f"s3files:Client{verb}" for verb in ("Mount", "Write"))
        yield Permission(f"Mount{sid_part_from_name(mount.name)}", f"mount `{mount.name}`", at, verbs, (arn,), context)


def fetch_file_system(client: QueryClient, requested: FileSystemQuery) -> Queried[Optional[FileSystem]]:
    """Describe one S3 Files file system, None when there is no such one."""
    calls = client.service_client(S3Files, requested.region)
    described = client.query_or_record_failure(
        "s3files:GetFileSystem",
        requested.path,
        f"whether {requested.id} exists",
        lambda: calls.file_system(requested.id),
    )
    if described is None or isinstance(described, NotQueried):
        return described
    targets = client.query_or_record_failure(
        "s3files:ListMountTargets",
        requested.path,
        f"whether the nodes can reach a mount target of {requested.id}",
        lambda: calls.mount_targets(requested.id),
    )
    points = {
        point: client.query_or_record_failure(
            "s3files:GetAccessPoint",
            requested.path,
            f"whether access point {point} exists",
            lambda point=point: _parse_access_point(calls.access_point(point)),  # type: ignore[misc]
        )
        for point in requested.points
    }
    endpoints: Queried[tuple[StorageEndpoint, ...]]
    if isinstance(targets, NotQueried):
        endpoints = targets
    else:
        endpoints = tuple(_fetch_endpoint(client, calls, requested, target) for target in targets)
    return FileSystem(requested.id, described["status"], None, endpoints, None, points)


def _fetch_endpoint(
    client: QueryClient, calls: S3Files, requested: FileSystemQuery, target: Mapping[str, Any]
) -> StorageEndpoint:
    endpoint = StorageEndpoint(
        target["mountTargetId"],
        target.get("availabilityZoneId", ""),
        target.get("vpcId", ""),
        target.get("ipv4Address", ""),
        (),
        target.get("status", "AVAILABLE").upper() == "AVAILABLE",
    )
    return with_fetched_security_groups(
        client, "s3files:GetMountTarget", requested, endpoint, calls.mount_target_security_group_ids
    )


def _parse_access_point(entry: Optional[Mapping[str, Any]]) -> Optional[AccessPointFacts]:
    if entry is None:
        return None
    return AccessPointFacts(entry["accessPointId"], entry["fileSystemId"], entry["status"].upper() == "AVAILABLE")


KIND = MountInquiry(
    permissions=required_role_permissions,
    shared=SharedService("S3 Files", "s3files", "aws s3files list-file-systems", fetch_file_system),
    fsx=None,
    bucket=None,
    checks=(),
)
