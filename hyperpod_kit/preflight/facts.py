"""What AWS said, as far as the checks read it. A fact that could not be asked is an `NotQueried` in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, Optional, TypeVar, Union

from hyperpod_kit.aws.buckets import BucketHead
from hyperpod_kit.aws.iam import Caller, Decision
from hyperpod_kit.aws.quotas import Quota
from hyperpod_kit.preflight.reachability import SecurityGroup

T = TypeVar("T")


@dataclass(frozen=True)
class NotQueried:
    """A question without an answer. `action`: what IAM calls it, `ec2:DescribeSubnets`.

    path: what in the configuration it is about; what: what stays unchecked; reason: AWS's words; denied: the caller has
    no permission (otherwise nobody answered, or too slowly).
    """

    action: str
    path: str
    what: str
    reason: str
    denied: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "action": self.action,
            "path": self.path,
            "what": self.what,
            "why": self.reason,
            "denied": self.denied,
        }


NOT_QUERIED = NotQueried("", "", "", "", False)
"""Not queried: an earlier finding makes the answer irrelevant."""

Queried = Union[T, NotQueried]


def value_or_none(queried: Queried[Optional[T]]) -> Optional[T]:
    """Return the fact, None where it was not queried (and where there is none)."""
    if isinstance(queried, NotQueried):
        return None
    return queried


@dataclass(frozen=True)
class Subnet:
    """`zone`: id of the availability zone, `use1-az4`: names differ between accounts; free: unused addresses."""

    id: str
    vpc_id: str
    zone: str
    zone_name: str
    cidr: str
    free: int


@dataclass(frozen=True)
class Route:
    """`destination`: a network or a prefix list; target: `igw-…`, `nat-…`, `local`; active: no black hole."""

    destination: str
    target: str
    active: bool


@dataclass(frozen=True)
class RouteTable:
    """`main`: the one of subnets of the VPC that have none of their own; subnets: those that have this one."""

    id: str
    vpc_id: str
    main: bool
    subnets: frozenset[str]
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class Endpoint:
    """A VPC endpoint. `service`: without the prefix, `s3`; kind: Gateway, Interface, …"""

    vpc_id: str
    service: str
    kind: str


@dataclass(frozen=True)
class InstanceType:
    """`efa`: whether it has an Elastic Fabric Adapter."""

    name: str
    efa: bool


@dataclass(frozen=True)
class StorageEndpoint:
    """An address of a file system in a network: a mount target, or a network interface of FSx."""

    id: str
    zone: str
    vpc_id: str
    address: str
    groups: Queried[tuple[str, ...]]
    ready: bool = True


@dataclass(frozen=True)
class AccessPointFacts:
    """An access point as AWS describes it."""

    id: str
    file_system_id: str
    ready: bool


@dataclass(frozen=True)
class FileSystem:
    """An EFS or S3 Files file system. `zone`: of a One Zone file system; policy: None for the default one."""

    id: str
    state: str
    zone: Optional[str]
    endpoints: Queried[tuple[StorageEndpoint, ...]]
    policy: Queried[Optional[Mapping[str, Any]]]
    points: Mapping[str, Queried[Optional[AccessPointFacts]]] = field(default_factory=dict)


@dataclass(frozen=True)
class FsxFileSystem:
    """`kind`: LUSTRE, OPENZFS, …; volumes: paths of OpenZFS volumes, where anybody asked for one; capacity_gib,
    throughput_per_tib (MB/s, of Lustre): 0 for what FSx does not say."""

    id: str
    kind: str
    state: str
    dns_name: str
    mount_name: str
    vpc_id: str
    efa: bool
    endpoints: Queried[tuple[StorageEndpoint, ...]]
    volumes: Queried[Optional[tuple[str, ...]]]
    capacity_gib: int = 0
    throughput_per_tib: int = 0


def endpoint_security_group_ids(systems: Iterable[Queried[Optional[Union[FileSystem, FsxFileSystem]]]]) -> set[str]:
    """Return the ids of the security groups of every endpoint that is known."""
    ids: set[str] = set()
    for system in systems:
        if system is not None and not isinstance(system, NotQueried) and not isinstance(system.endpoints, NotQueried):
            for endpoint in system.endpoints:
                if not isinstance(endpoint.groups, NotQueried):
                    ids.update(endpoint.groups)
    return ids


@dataclass(frozen=True)
class RoleFacts:
    """`trust`: the policy that says who may become it."""

    arn: str
    trust: Mapping[str, Any]


@dataclass(frozen=True)
class NetworkFacts:
    """The network that the nodes will be in. Absent ids are missing from the answers."""

    subnets: Queried[tuple[Subnet, ...]]
    tables: Queried[tuple[RouteTable, ...]]
    endpoints: Queried[tuple[Endpoint, ...]]
    groups: Mapping[str, Queried[Optional[SecurityGroup]]]
    dns: Mapping[str, Queried[tuple[bool, bool]]]

    def security_group_if_known(self, group_id: str) -> Optional[SecurityGroup]:
        """A security group, None when it is not there or was not asked."""
        return value_or_none(self.groups.get(group_id))


@dataclass(frozen=True)
class AccountFacts:
    """Everything that the checks look at. Keys: buckets by name, file systems by kind of mount
    and (region, id), FSx's by (region, id), prefixes by (bucket,
    prefix), types without `ml.`, roles and secrets by ARN, decisions by (role, Sid of the need)."""

    caller: Caller
    network: Optional[NetworkFacts] = None
    roles: Mapping[str, Queried[Optional[RoleFacts]]] = field(default_factory=dict)
    decisions: Mapping[tuple[str, str], Queried[tuple[Decision, ...]]] = field(default_factory=dict)
    buckets: Mapping[str, Queried[BucketHead]] = field(default_factory=dict)
    empty: Mapping[tuple[str, str], Queried[bool]] = field(default_factory=dict)
    file_systems: Mapping[str, Mapping[tuple[str, str], Queried[Optional[FileSystem]]]] = field(default_factory=dict)
    fsx: Mapping[tuple[str, str], Queried[Optional[FsxFileSystem]]] = field(default_factory=dict)
    types: Queried[Mapping[str, InstanceType]] = NOT_QUERIED
    offered: Queried[frozenset[tuple[str, str]]] = NOT_QUERIED
    quotas: Queried[Mapping[str, Quota]] = NOT_QUERIED
    used: Queried[Mapping[str, Mapping[str, int]]] = NOT_QUERIED
    secrets: Mapping[str, Queried[bool]] = field(default_factory=dict)
    not_queried: tuple[NotQueried, ...] = ()

    @property
    def known_subnets(self) -> Optional[tuple[Subnet, ...]]:
        """The subnets of the network, None where they were not queried."""
        if self.network is None:
            return None
        return value_or_none(self.network.subnets)

    @property
    def known_endpoints(self) -> Optional[tuple[Endpoint, ...]]:
        """The VPC endpoints of the network, None where they were not queried."""
        if self.network is None:
            return None
        return value_or_none(self.network.endpoints)
