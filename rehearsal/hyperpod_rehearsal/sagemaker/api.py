"""What the SageMaker endpoint asks of the control plane behind it."""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence


class ApiError(Exception):
    """An error answer of the API. code: as in the service model (ResourceNotFound, ValidationException, ...)."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class ControlPlane(Protocol):
    """Clusters. Requests and answers are dicts in the shape of the API; times are Unix seconds (float).

    Requests have passed the service model's validation. `name` is what the client gave as ClusterName: a name
    or an ARN. Every method may raise ApiError. Methods are called from many threads at once.
    """

    def create_cluster(self, request: Mapping[str, Any]) -> str:
        """Start creating a cluster; returns its ARN."""

    def describe_cluster(self, name: str) -> dict[str, Any]:
        """The answer of DescribeCluster."""

    def list_clusters(self) -> list[dict[str, Any]]:
        """All ClusterSummaries, unsorted and unfiltered."""

    def list_cluster_nodes(self, name: str) -> list[dict[str, Any]]:
        """All ClusterNodeSummaries of a cluster, unsorted and unfiltered."""

    def describe_cluster_node(self, name: str, node_id: str) -> dict[str, Any]:
        """NodeDetails of a node, by instance id."""

    def list_cluster_events(self, name: str) -> list[dict[str, Any]]:
        """All events of a cluster in DescribeClusterEvent's shape, oldest first."""

    def list_cluster_operations(self, name: str) -> list[dict[str, Any]]:
        """All operations of a cluster in DescribeClusterOperation's shape, oldest first."""

    def start_cluster_health_check(self, request: Mapping[str, Any]) -> str:
        """Start deep health checks; returns the ARN."""

    def describe_training_plan(self, name: str) -> dict[str, Any]:
        """The answer of DescribeTrainingPlan. `name`: a name or an ARN."""

    def update_cluster(self, request: Mapping[str, Any]) -> str:
        """Start an update; returns the ARN."""

    def delete_cluster(self, name: str) -> str:
        """Start the deletion; returns the ARN."""

    def update_cluster_software(self, request: Mapping[str, Any]) -> str:
        """Start the software's update; returns the ARN."""

    def batch_replace_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of BatchReplaceClusterNodes."""

    def batch_reboot_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of BatchRebootClusterNodes."""

    def batch_delete_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of BatchDeleteClusterNodes."""

    def batch_add_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of BatchAddClusterNodes."""

    def lifecycle_script_buckets_and_prefixes(self) -> list[tuple[str, str]]:
        """(bucket, prefix) of what the nodes of all clusters run."""

    def tags(self, arn: str) -> dict[str, str]:
        """Tags of a resource, by key."""

    def add_tags(self, arn: str, tags: Sequence[Mapping[str, str]]) -> dict[str, str]:
        """Add or overwrite tags of a resource; returns all that it has then."""

    def delete_tags(self, arn: str, keys: Sequence[str]) -> None:
        """Remove tags; keys that are not there are not missed."""
