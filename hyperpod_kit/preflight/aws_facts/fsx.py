"""FSx: the file system behind a DNS name, its network interfaces, and the volumes of OpenZFS."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional

from hyperpod_kit.aws.ec2 import Ec2
from hyperpod_kit.aws.fsx import Fsx
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import FsxFileSystem, NotQueried, Queried, StorageEndpoint
from hyperpod_kit.preflight.mounts.inquiry import FsxType
from hyperpod_kit.preflight.mounts.registry import INQUIRIES


class FsxQuery(NamedTuple):
    """A file system that a mount names by its DNS name. `volumes`: whether a volume besides the root is mounted."""

    region: str
    id: str
    path: str
    volumes: bool


def parse_fsx_region_and_id(dns_name: str, default_region: str) -> tuple[str, str]:
    """Return (region, id) of `fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com`; `default_region` where the name
    has none."""
    labels = dns_name.lower().split(".")
    named_region = default_region
    if len(labels) > 3 and labels[1] == "fsx":
        named_region = labels[2]
    return (named_region, labels[0])


def fsx_mounts_with_config_paths(settings: Settings) -> list[tuple[FsxType, Any, str, str]]:
    """Return every FSx mount with its type and the paths of its DNS name and of its mount name or export."""
    mounts = []
    for mount, at in settings.sourced_mounts:
        its = INQUIRIES[mount.kind].fsx
        if its is not None:
            form = FORMS[mount.kind]
            mounts.append(
                (
                    its,
                    mount,
                    form.configuration_path_of_key(at, "dns_name"),
                    form.configuration_path_of_key(at, its.part),
                )
            )
    return mounts


def file_system_queries(settings: Settings) -> list[FsxQuery]:
    """Return a query for every FSx file system, once, in the order of the mounts."""
    queries: dict[tuple[str, str], FsxQuery] = {}
    for its, mount, path, _ in fsx_mounts_with_config_paths(settings):
        key = parse_fsx_region_and_id(mount.dns_name, settings.cluster.region)
        query = queries.setdefault(key, FsxQuery(*key, path, False))
        if its.volumes(mount):
            queries[key] = query._replace(volumes=True)
    return list(queries.values())


def fetch_file_system(client: QueryClient, requested: FsxQuery) -> Queried[Optional[FsxFileSystem]]:
    """Describe one file system, None when there is no such one."""
    calls = client.service_client(Fsx, requested.region)
    described = client.query_or_record_failure(
        "fsx:DescribeFileSystems",
        requested.path,
        f"whether {requested.id} exists, its network, and its mount names",
        lambda: calls.file_system(requested.id),
    )
    if described is None or isinstance(described, NotQueried):
        return described
    volumes: Queried[Optional[tuple[str, ...]]] = None
    if requested.volumes:
        volumes = client.query_or_record_failure(
            "fsx:DescribeVolumes",
            requested.path,
            f"which volumes {requested.id} has",
            lambda: tuple(calls.volume_paths(requested.id)),
        )
    return FsxFileSystem(
        requested.id,
        described["FileSystemType"],
        described.get("Lifecycle", "AVAILABLE"),
        described.get("DNSName", ""),
        described.get("LustreConfiguration", {}).get("MountName", ""),
        described.get("VpcId", ""),
        bool(described.get("LustreConfiguration", {}).get("EfaEnabled")),
        _fetch_endpoints(client, requested, described.get("NetworkInterfaceIds", [])),
        volumes,
        int(described.get("StorageCapacity", 0)),
        int(described.get("LustreConfiguration", {}).get("PerUnitStorageThroughput", 0)),
    )


def _fetch_endpoints(client: QueryClient, requested: FsxQuery, ids: list[str]) -> Queried[tuple[StorageEndpoint, ...]]:
    if not ids:
        return ()
    ec2 = client.service_client(Ec2, requested.region)
    interfaces = client.query_or_record_failure(
        "ec2:DescribeNetworkInterfaces",
        requested.path,
        f"whether the security groups of {requested.id} admit the nodes",
        lambda: ec2.network_interfaces(ids),
    )
    if isinstance(interfaces, NotQueried):
        return interfaces
    zones = client.query_or_record_failure(
        "ec2:DescribeSubnets",
        requested.path,
        f"whether {requested.id} is in the nodes' zones",
        lambda: {
            entry["SubnetId"]: entry["AvailabilityZoneId"]
            for entry in ec2.subnets(interface["SubnetId"] for interface in interfaces)
        },
    )
    if isinstance(zones, NotQueried):
        known_zones = {}
    else:
        known_zones = zones
    return tuple(_endpoint_from_interface(interface, known_zones) for interface in interfaces)


def _endpoint_from_interface(interface: Mapping[str, Any], zones: Mapping[str, str]) -> StorageEndpoint:
    return StorageEndpoint(
        interface["NetworkInterfaceId"],
        zones.get(interface["SubnetId"], ""),
        interface["VpcId"],
        interface.get("PrivateIpAddress", ""),
        tuple(group["GroupId"] for group in interface.get("Groups", [])),
    )
