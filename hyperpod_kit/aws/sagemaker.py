"""The HyperPod calls of SageMaker, one method each; errors are ours."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

from hyperpod_kit.aws.errors import translated
from hyperpod_kit.aws.session import client

BATCH_LIMIT = 25
"""How many nodes one BatchReplaceClusterNodes or BatchRebootClusterNodes takes."""

Batched = tuple[list[str], list[dict[str, Any]]]
"""(ids that were accepted, refusals with NodeId, ErrorCode and Message)."""


class SageMaker:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("sagemaker", region, connections=connections)

    def create_cluster(self, request: dict[str, Any]) -> str:
        """Create a cluster; its ARN."""
        with translated("CreateCluster", request["ClusterName"]):
            return str(self._client.create_cluster(**request)["ClusterArn"])

    def describe_cluster(self, name: str) -> dict[str, Any]:
        """DescribeCluster's answer without the transport's metadata."""
        with translated("DescribeCluster", name):
            return _plain(self._client.describe_cluster(ClusterName=name))

    def list_nodes(self, name: str) -> list[dict[str, Any]]:
        """ClusterNodeSummaries of all pages."""
        with translated("ListClusterNodes", name):
            pages = self._client.get_paginator("list_cluster_nodes").paginate(
                ClusterName=name, PaginationConfig={"PageSize": 100}
            )
            return [dict(node) for page in pages for node in page.get("ClusterNodeSummaries", [])]

    def describe_node(self, name: str, node_id: str) -> dict[str, Any]:
        """NodeDetails of one node: the only answer that holds its IP address."""
        with translated("DescribeClusterNode", f"{name}/{node_id}"):
            return dict(self._client.describe_cluster_node(ClusterName=name, NodeId=node_id)["NodeDetails"])

    def delete_cluster(self, name: str) -> None:
        """Begin to delete a cluster."""
        with translated("DeleteCluster", name):
            self._client.delete_cluster(ClusterName=name)

    def update_cluster(self, request: dict[str, Any]) -> None:
        """Begin to change a cluster."""
        with translated("UpdateCluster", request["ClusterName"]):
            self._client.update_cluster(**request)

    def replace_nodes(self, name: str, node_ids: Sequence[str]) -> Batched:
        """Begin to replace nodes, in batches of BATCH_LIMIT."""
        return self._in_batches("BatchReplaceClusterNodes", self._client.batch_replace_cluster_nodes, name, node_ids)

    def reboot_nodes(self, name: str, node_ids: Sequence[str]) -> Batched:
        """Begin to restart nodes, in batches of BATCH_LIMIT."""
        return self._in_batches("BatchRebootClusterNodes", self._client.batch_reboot_cluster_nodes, name, node_ids)

    def _in_batches(self, operation: str, call: Callable[..., Any], name: str, node_ids: Sequence[str]) -> Batched:
        done: list[str] = []
        refused: list[dict[str, Any]] = []
        for start in range(0, len(node_ids), BATCH_LIMIT):
            with translated(operation, name):
                answer = call(ClusterName=name, NodeIds=list(node_ids[start : start + BATCH_LIMIT]))
            done += answer.get("Successful", [])
            refused += answer.get("Failed", [])
        return done, refused


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "ResponseMetadata"}
