"""File systems with an id and mount targets, of EFS and S3 Files: which of them are asked about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterable, NamedTuple, Optional

from hyperpod_kit.config.settings.homes import NO_ACCESS_POINT
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.kinds import KINDS
from hyperpod_kit.preflight.client import QueryClient, mount_or_cluster_region
from hyperpod_kit.preflight.facts import AccountFacts, FileSystem, StorageEndpoint, value_or_none


class FileSystemQuery(NamedTuple):
    """A file system and its mounts. `path`: where the first one names it; points: their access points."""

    region: str
    id: str
    path: str
    points: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()

    @property
    def region_config_path(self) -> str:
        """Return the path of the region of that mount, if it has one."""
        return self.path.replace(".file_system_id", ".region")


def file_system_queries(settings: Settings, kind: str) -> list[FileSystemQuery]:
    """Return a query for every file system of a kind, once, in the order of the mounts."""
    queries: dict[tuple[str, str], FileSystemQuery] = {}
    for mount, at in settings.mounts_of_kind(KINDS[kind]):
        key = (mount_or_cluster_region(mount.region, settings.cluster.region), mount.file_system_id)
        query = queries.get(key) or FileSystemQuery(*key, f"{at}.file_system_id")
        point = mount.access_point_id
        if point in (None, NO_ACCESS_POINT, *query.points):
            points = query.points
        else:
            points = (*query.points, str(point))
        queries[key] = query._replace(points=points, mounts=(*query.mounts, mount))
    return list(queries.values())


def with_fetched_security_groups(
    client: QueryClient,
    action: str,
    requested: FileSystemQuery,
    endpoint: StorageEndpoint,
    fetch_security_groups: Callable[[str], Iterable[str]],
) -> StorageEndpoint:
    """Query the security groups of a mount target by `fetch_security_groups` and return the target with them.

    `action`: the IAM action of that query.
    """
    groups = client.query_or_record_failure(
        action,
        requested.path,
        f"whether mount target {endpoint.id} of {requested.id} admits the nodes",
        lambda: tuple(fetch_security_groups(endpoint.id)),
    )
    return replace(endpoint, groups=groups)


def file_system_facts(settings: Settings, facts: AccountFacts, mount: Any) -> Optional[FileSystem]:
    """Return what AWS said of the file system of a mount; None when it is not there or was not queried."""
    key = (mount_or_cluster_region(mount.region, settings.cluster.region), mount.file_system_id)
    return value_or_none(facts.file_systems.get(mount.kind, {}).get(key))
