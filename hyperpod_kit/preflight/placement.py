"""Where the nodes will be, and as whom: the cluster's network and role, and those that single groups have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Optional, Sequence

from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.cluster import InstanceGroup, Vpc
from hyperpod_kit.model.mounts.base import Mount

CLUSTER = "hyperpod_kit.cluster"
TYPES = f"{CLUSTER}.instance_groups"


@dataclass(frozen=True)
class NetworkPlacement:
    """A network and the instance groups in it. `path`: where the configuration says so."""

    path: str
    vpc: Vpc
    groups: tuple[InstanceGroup, ...]

    @property
    def subnets_config_path(self) -> str:
        """Return the path of its subnets."""
        return f"{self.path}.subnet_ids"

    @property
    def security_groups_config_path(self) -> str:
        """Return the path of its security groups."""
        return f"{self.path}.security_group_ids"

    @property
    def node_count(self) -> int:
        """Count the nodes that are to be there."""
        return sum(group.count for group in self.groups)

    def has_node_with_any_mount(self, mounts: Iterable[Mount]) -> bool:
        """Whether a node here has one of the mounts."""
        return any(mount.is_carried_by(group.role, group.name) for mount in mounts for group in self.groups)


@dataclass(frozen=True)
class NodeRole:
    """An execution role and the instance groups that have it. `path`: where the configuration says so."""

    path: str
    arn: str
    groups: tuple[InstanceGroup, ...]

    @property
    def name(self) -> str:
        """Return the role's name; its ARN may have a path in front of it."""
        return self.arn.rpartition("/")[2]

    @property
    def account(self) -> str:
        """Return the account of the role; empty in what is no ARN."""
        return (self.arn.split(":") + [""] * 5)[4]


def network_placements(settings: Settings) -> tuple[NetworkPlacement, ...]:
    """Return the cluster's own network first, when any group is in it, then those of single groups."""
    all_placements = []
    shared = tuple(group for group in settings.cluster.groups if group.vpc is None)
    if settings.cluster.vpc is not None and (shared or not settings.cluster.groups):
        all_placements.append(NetworkPlacement(f"{CLUSTER}.vpc", settings.cluster.vpc, shared))
    for index, group in enumerate(settings.cluster.groups):
        if group.vpc is not None:
            all_placements.append(NetworkPlacement(f"{TYPES}[{index}].vpc", group.vpc, (group,)))
    return tuple(all_placements)


def carrying_subnet_ids(settings: Settings, mounts: Sequence[Mount]) -> set[str]:
    """Return the ids of the subnets whose nodes carry one of the mounts."""
    ids: set[str] = set()
    for placement in network_placements(settings):
        if placement.has_node_with_any_mount(mounts):
            ids.update(placement.vpc.subnet_ids)
    return ids


def subnet_config_path(settings: Settings, subnet_id: str) -> Optional[str]:
    """Return the path of the first place in the configuration that names a subnet, None when none does."""
    for placement in network_placements(settings):
        if subnet_id in placement.vpc.subnet_ids:
            return f"{placement.subnets_config_path}[{placement.vpc.subnet_ids.index(subnet_id)}]"
    return None


def execution_roles(settings: Settings) -> tuple[NodeRole, ...]:
    """Return every execution role once, the cluster's own first."""
    members: dict[str, list[InstanceGroup]] = {}
    paths: dict[str, str] = {}
    for index, group in enumerate(settings.cluster.groups):
        arn = group.execution_role or settings.cluster.execution_role
        members.setdefault(arn, []).append(group)
        paths.setdefault(arn, f"{TYPES}[{index}].execution_role")
    cluster_role = settings.cluster.execution_role
    paths[cluster_role] = f"{CLUSTER}.execution_role"
    order = sorted(members, key=lambda arn: arn != cluster_role)
    return tuple(NodeRole(paths[arn], arn, tuple(members[arn])) for arn in order)
