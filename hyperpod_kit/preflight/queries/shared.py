"""EFS and S3 Files: file systems, their mount targets, access points and policies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

from hyperpod_kit.aws.efs import Efs
from hyperpod_kit.aws.s3files import S3Files
from hyperpod_kit.config.homes import NO_ACCESS_POINT
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.errors import AwsError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.preflight.facts import AccessPointFacts, Answer, FileSystem, NotQueried, StorageEndpoint
from hyperpod_kit.preflight.queries.client import QueryClient, region_of

ONE_BY_ONE = 3
"""Up to so many access points are asked for by id; more come from one listing of their file system."""


class FileSystemQuery(NamedTuple):
    """A file system and its mounts. `path`: where the first one names it; points: their access points."""

    region: str
    id: str
    path: str
    points: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()

    @property
    def region_path(self) -> str:
        """Where that mount says the region, if it does."""
        return self.path.replace(".file_system_id", ".region")


def wanted(settings: Settings, kind: type[Union[EfsMount, S3FilesMount]]) -> list[FileSystemQuery]:
    """Every file system of a kind, once, in the order of the mounts."""
    found: dict[tuple[str, str], FileSystemQuery] = {}
    for mount, place in settings.written(kind):
        key = (region_of(mount.region, settings.cluster.region), mount.file_system_id)
        here = found.get(key) or FileSystemQuery(*key, f"{place}.file_system_id")
        point = mount.access_point_id
        points = here.points if point in (None, NO_ACCESS_POINT, *here.points) else (*here.points, str(point))
        found[key] = here._replace(points=points, mounts=(*here.mounts, mount))
    return list(found.values())


def efs(client: QueryClient, want: FileSystemQuery) -> Answer[Optional[FileSystem]]:
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
        targets
        if isinstance(targets, NotQueried)
        else tuple(_efs_endpoint(client, calls, want, one) for one in targets),
        policy,
        _efs_points(client, calls, want),
    )


def s3files(client: QueryClient, want: FileSystemQuery) -> Answer[Optional[FileSystem]]:
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
            lambda point=point: _s3files_point(calls.access_point(point)),  # type: ignore[misc]
        )
        for point in want.points
    }
    endpoints = (
        targets
        if isinstance(targets, NotQueried)
        else tuple(_s3files_endpoint(client, calls, want, one) for one in targets)
    )
    return FileSystem(want.id, described["status"], None, endpoints, None, points)


def _efs_endpoint(client: QueryClient, calls: Efs, want: FileSystemQuery, target: Mapping[str, Any]) -> StorageEndpoint:
    endpoint = StorageEndpoint(
        target["MountTargetId"],
        target["AvailabilityZoneId"],
        target["VpcId"],
        target.get("IpAddress", ""),
        (),
        target["LifeCycleState"] == "available",
    )
    return _with_groups(client, calls, want, endpoint, "elasticfilesystem:DescribeMountTargetSecurityGroups")


def _s3files_endpoint(
    client: QueryClient, calls: S3Files, want: FileSystemQuery, target: Mapping[str, Any]
) -> StorageEndpoint:
    endpoint = StorageEndpoint(
        target["mountTargetId"],
        target.get("availabilityZoneId", ""),
        target.get("vpcId", ""),
        target.get("ipv4Address", ""),
        (),
        target.get("status", "AVAILABLE").upper() == "AVAILABLE",
    )
    return _with_groups(client, calls, want, endpoint, "s3files:GetMountTarget")


def _with_groups(
    client: QueryClient, calls: Union[Efs, S3Files], want: FileSystemQuery, endpoint: StorageEndpoint, action: str
) -> StorageEndpoint:
    groups = client.ask(
        action,
        want.path,
        f"whether mount target {endpoint.id} of {want.id} lets the nodes in",
        lambda: tuple(calls.security_groups(endpoint.id)),
    )
    return replace(endpoint, groups=groups)


def _efs_points(
    client: QueryClient, calls: Efs, want: FileSystemQuery
) -> dict[str, Answer[Optional[AccessPointFacts]]]:
    action = "elasticfilesystem:DescribeAccessPoints"
    listed: Sequence[AccessPointFacts] = ()
    if len(want.points) > ONE_BY_ONE:
        answer = client.ask(
            action,
            want.path,
            f"whether the access points of {want.id} are there",
            lambda: [_efs_point(entry) for entry in calls.access_points(want.id)],
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
                lambda point=point: _efs_point(calls.access_point(point)),  # type: ignore[misc]
            )
    return {point: there[point] for point in want.points}


def _efs_point(entry: Optional[Mapping[str, Any]]) -> Any:
    if entry is None:
        return None
    return AccessPointFacts(
        entry["AccessPointId"], entry["FileSystemId"], entry.get("LifeCycleState", "available") == "available"
    )


def _s3files_point(entry: Optional[Mapping[str, Any]]) -> Optional[AccessPointFacts]:
    if entry is None:
        return None
    return AccessPointFacts(entry["accessPointId"], entry["fileSystemId"], entry["status"].upper() == "AVAILABLE")


def _or_none(code: str, call: Any) -> Any:
    """`call()`, or None when AWS answers with `code`."""
    try:
        return call()
    except AwsError as err:
        if err.code != code:
            raise
        return None
