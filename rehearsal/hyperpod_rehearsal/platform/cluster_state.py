"""Clusters and nodes as the control plane knows them, and their form in state.json."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from hyperpod_rehearsal.machines.network import host_name_from_ip

ACCOUNT = "111122223333"
REGION = "us-east-1"
ZONE = f"{REGION}a"

CONTROLLER, LOGIN, COMPUTE = "Controller", "Login", "Compute"
"""Slurm's node types as SlurmConfig.NodeType spells them."""


@dataclass
class RehearsedNode:
    """One instance. `status`: ClusterInstanceStatus; `role`: Slurm node type or ""; times: Unix seconds.

    `logical_id`: NodeLogicalId, which stays with the place through replacements.
    """

    instance_id: str
    group: str
    instance_type: str
    index: int
    ip: str
    role: str = ""
    status: str = "Pending"
    message: str = ""
    launched_at: float = field(default_factory=time.time)
    booted_at: float = 0.0
    pid: int = 0
    pid_started: int = 0
    replaces: str = ""
    logical_id: str = field(default_factory=lambda: f"node-{secrets.token_hex(8)}")
    updated_at: float = 0.0

    @property
    def host(self) -> str:
        return host_name_from_ip(self.ip)

    @property
    def group_and_index(self) -> str:
        """`worker-group/0`: how a person names a node whatever instance serves it."""
        return f"{self.group}/{self.index}"


@dataclass
class RehearsedCluster:
    """One cluster. `request`: the CreateCluster request with later updates applied; `slurm`: group -> node type;
    `additions`: ClientToken of BatchAddClusterNodes -> logical ids of the nodes that it added; `operations`: in
    DescribeClusterOperation's shape, oldest first; `software_updates`: of a group, `status` and `begun_at` of the
    last one."""

    name: str
    id: str
    request: Dict[str, Any]
    created_at: float = field(default_factory=time.time)
    status: str = "Creating"
    failure_message: str = ""
    slurm: Dict[str, str] = field(default_factory=dict)
    partitions: Dict[str, List[str]] = field(default_factory=dict)
    nodes: Dict[str, RehearsedNode] = field(default_factory=dict)
    events: List[Dict[str, Any]] = field(default_factory=list)
    tags: Dict[str, str] = field(default_factory=dict)
    additions: Dict[str, List[str]] = field(default_factory=dict)
    operations: List[Dict[str, Any]] = field(default_factory=list)
    software_updates: Dict[str, Dict[str, Any]] = field(default_factory=dict)

    @property
    def is_continuously_provisioned(self) -> bool:
        """Whether nodes come, and are tried again, while the cluster is InService."""
        return bool(self.request.get("NodeProvisioningMode") == "Continuous")

    @property
    def arn(self) -> str:
        return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:cluster/{self.id}"

    @property
    def groups(self) -> List[Dict[str, Any]]:
        """Instance group specifications in the order of the request."""
        specifications: List[Dict[str, Any]] = self.request.get("InstanceGroups", [])
        return specifications

    def group(self, name: str) -> Dict[str, Any]:
        """Specification of a group. Raises KeyError."""
        for group in self.groups:
            if group["InstanceGroupName"] == name:
                return group
        raise KeyError(name)

    @property
    def replaces_dead_nodes(self) -> bool:
        """Whether dead nodes are replaced by themselves (NodeRecovery, Automatic unless the request says None)."""
        return bool(self.request.get("NodeRecovery", "Automatic") == "Automatic")

    def nodes_in_group(self, name: str) -> List[RehearsedNode]:
        """Nodes of a group in order of their index."""
        return sorted((node for node in self.nodes.values() if node.group == name), key=lambda node: node.index)

    @property
    def controllers(self) -> List[RehearsedNode]:
        """The nodes that run slurmctld, the primary first; none without Slurm."""
        return sorted((node for node in self.nodes.values() if node.role == CONTROLLER), key=lambda node: node.index)

    @property
    def controller(self) -> Optional[RehearsedNode]:
        """Return the primary controller, None without Slurm."""
        return next(iter(self.controllers), None)


def instance_type(group: Mapping[str, Any]) -> str:
    """Type of a group's instances; of a flexible group the first that it names."""
    if "InstanceType" in group:
        return str(group["InstanceType"])
    return str(group["InstanceRequirements"]["InstanceTypes"][0])


def is_spot(group: Mapping[str, Any]) -> bool:
    """Whether an instance group is of Spot instances, by the request."""
    return "Spot" in (group.get("CapacityRequirements") or {})


def serialize_clusters(clusters: Mapping[str, RehearsedCluster]) -> List[Dict[str, Any]]:
    """JSON form of all clusters."""
    return [
        {
            **asdict(cluster),
            "nodes": [
                {**asdict(node), "host": node.host, "place": node.group_and_index} for node in cluster.nodes.values()
            ],
        }
        for cluster in clusters.values()
    ]
