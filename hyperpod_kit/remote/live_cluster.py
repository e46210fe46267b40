"""A cluster whose nodes are asked: which nodes those are, and what its configuration says they must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from hyperpod_kit.aws.sagemaker import SageMaker
from hyperpod_kit.cluster.command_arguments import cluster_arguments
from hyperpod_kit.cluster.nodes import ClusterNode, list_nodes
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.errors import ClusterError, UsageError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import Role
from hyperpod_kit.remote.target import NodeTarget

REPORTED_EVERY = 300.0
"""Seconds after which a node reports its mounts again when nothing has changed."""


@dataclass(frozen=True)
class LiveCluster:
    """`settings`: the cluster's configuration, None when only its name is known."""

    name: str
    region: Optional[str]
    settings: Optional[Settings]
    sagemaker: SageMaker

    @property
    def arn(self) -> str:
        """Query and return the ARN of the cluster. Raises AwsError, Unreachable."""
        return str(self.sagemaker.describe_cluster(self.name)["ClusterArn"])

    def list_nodes_not_being_removed(self) -> list[ClusterNode]:
        """List the nodes, all but those on their way out. Raises AwsError, Unreachable."""
        return [node for node in list_nodes(self.sagemaker, self.name) if not node.is_shutting_down_or_gone]

    def list_targets(self) -> list[NodeTarget]:
        """List the nodes as targets of queries. Raises AwsError, Unreachable."""
        if self.settings:
            roles = {group.name: group.role for group in self.settings.cluster.groups}
        else:
            roles = {}
        return [
            NodeTarget.from_cluster_node(node, roles.get(node.group, ""))
            for node in self.list_nodes_not_being_removed()
        ]

    def require_targets(self) -> list[NodeTarget]:
        """List the targets, of which there must be one. Raises ClusterError too."""
        targets = self.list_targets()
        if not targets:
            arguments = cluster_arguments(self.name, self.region)
            raise ClusterError(f"cluster {self.name} has no nodes", hint=f"hyperpod-kit describe-cluster {arguments}")
        return targets

    def controller_addresses(self) -> list[str]:
        """Return the private addresses of the controllers. Raises UsageError when it is not known which nodes those
        are."""
        addresses = [
            target.address for target in self.list_targets() if target.role == Role.CONTROLLER and target.address
        ]
        if addresses:
            return addresses
        raise UsageError(
            f"cannot tell which node of {self.name} is the controller",
            hint="--controller HOST, or the configuration file, which names the controller",
        )

    def expected_mounts_by_group(self) -> dict[str, Sequence[Mount]]:
        """Return instance group -> the mounts that its nodes must have; empty without a configuration."""
        if self.settings is None:
            return {}
        config = self.settings.node_config()
        return {group: config.mounts_for(role, group) for group, role in config.roles.items()}

    def max_report_age_seconds(self) -> float:
        """Return the age in seconds up to which a report that a node sent counts: the time in which it sends two."""
        interval = 30.0
        if self.settings is not None:
            interval = self.settings.node_config().health.interval
        return 2 * (REPORTED_EVERY + interval)
