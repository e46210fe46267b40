"""S3 Files: file systems, mount targets and access points."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional

from hyperpod_kit.aws.s3files import S3Files
from hyperpod_kit.preflight.facts import AccessPointFacts, Answer, FileSystem, NotQueried, StorageEndpoint
from hyperpod_kit.preflight.mounts.inquiry import MountInquiry, SharedService
from hyperpod_kit.preflight.need import Account, Carried, Need, sid_of
from hyperpod_kit.preflight.placement import RoleOf
from hyperpod_kit.preflight.queries.client import QueryClient
from hyperpod_kit.preflight.queries.shared import FileSystemQuery, with_groups


def needs(carried: Carried, account: Account, role: RoleOf) -> Iterator[Need]:
    """S3 Files always asks IAM. The configuration does not know its bucket, so direct reads of it are not here."""
    for mount, at in carried:
        arn = account.arn("s3files", f"file-system/{mount.file_system_id}", mount.region)
        through: dict[str, tuple[str, ...]] = {}
        if mount.access_point_id is not None:
            through = {"s3files:AccessPointArn": (f"{arn}/access-point/{mount.access_point_id}",)}
        verbs = tuple(f"s3files:Client{verb}" for verb in ("Mount", "Write"))
        yield Need(f"Mount{sid_of(mount.name)}", f"mount `{mount.name}`", at, verbs, (arn,), through)


def query(client: QueryClient, want: FileSystemQuery) -> Answer[Optional[FileSystem]]:
    """One S3 Files file system, None when there is no such one."""
    calls = client.service(S3Files, want.region)
    described = client.ask(
        "s3files:GetFileSystem", want.path, f"whether {want.id} is there", lambda: calls.file_system(want.id)
    )
    if described is None or isinstance(described, NotQueried):
        return described
    targets = client.ask(
        "s3files:ListMountTargets",
        want.path,
        f"whether the nodes reach a mount target of {want.id}",
        lambda: calls.mount_targets(want.id),
    )
    points = {
        point: client.ask(
            "s3files:GetAccessPoint",
            want.path,
            f"whether access point {point} is there",
            lambda point=point: _point(calls.access_point(point)),  # type: ignore[misc]
        )
        for point in want.points
    }
    endpoints = (
        targets if isinstance(targets, NotQueried) else tuple(_endpoint(client, calls, want, one) for one in targets)
    )
    return FileSystem(want.id, described["status"], None, endpoints, None, points)


def _endpoint(client: QueryClient, calls: S3Files, want: FileSystemQuery, target: Mapping[str, Any]) -> StorageEndpoint:
    endpoint = StorageEndpoint(
        target["mountTargetId"],
        target.get("availabilityZoneId", ""),
        target.get("vpcId", ""),
        target.get("ipv4Address", ""),
        (),
        target.get("status", "AVAILABLE").upper() == "AVAILABLE",
    )
    return with_groups(client, "s3files:GetMountTarget", want, endpoint, calls.security_groups)


def _point(entry: Optional[Mapping[str, Any]]) -> Optional[AccessPointFacts]:
    if entry is None:
        return None
    return AccessPointFacts(entry["accessPointId"], entry["fileSystemId"], entry["status"].upper() == "AVAILABLE")


KIND = MountInquiry(
    needs=needs,
    shared=SharedService("S3 Files", "s3files", "aws s3files list-file-systems", query),
    fsx=None,
    bucket=None,
    checks=(),
)
