"""The HyperPod calls of SageMaker, one method each; errors are ours. Calls that AWS throttles are repeated here."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.back_off import with_retries
from hyperpod_kit.aws.errors import translated
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError, HyperpodKitError, Unreachable

BATCH_LIMIT = 25
"""How many nodes one BatchReplaceClusterNodes or BatchRebootClusterNodes takes; BatchDeleteClusterNodes takes more."""

PAGE = 100
"""Entries in one answer of a List call; AWS gives no more."""

NOT_SENT = "NotAsked"
"""ErrorCode of nodes whose batch did not reach AWS after an earlier one had."""

Batched = tuple[list[str], list[dict[str, Any]]]
"""(ids that were accepted, refusals with NodeId, ErrorCode and Message)."""


class SageMaker:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("sagemaker", region, connections=connections)

    @property
    def region(self) -> str:
        """The region that is asked."""
        return str(self._client.meta.region_name)

    def create_cluster(self, request: dict[str, Any]) -> str:
        """Create a cluster; its ARN."""
        return str(_call("CreateCluster", request["ClusterName"], self._client.create_cluster, **request)["ClusterArn"])

    def describe_cluster(self, name: str) -> dict[str, Any]:
        """DescribeCluster's answer without the transport's metadata."""
        return _plain(_call("DescribeCluster", name, self._client.describe_cluster, ClusterName=name))

    def list_clusters(self) -> list[dict[str, Any]]:
        """ClusterSummaries of all pages."""
        call = self._client.list_clusters
        pages = responses.pages(
            "ListClusters",
            lambda position: _call("ListClusters", self.region, call, MaxResults=PAGE, **position),
            "NextToken",
        )
        return [dict(cluster) for page in pages for cluster in page.get("ClusterSummaries", [])]

    def list_nodes(self, name: str) -> list[dict[str, Any]]:
        """ClusterNodeSummaries of all pages."""
        pages = _pages("ListClusterNodes", name, self._client.list_cluster_nodes)
        return [dict(node) for page in pages for node in page.get("ClusterNodeSummaries", [])]

    def describe_node(self, name: str, node_id: str) -> dict[str, Any]:
        """NodeDetails of one node: the only answer that holds its IP address."""
        target = f"{name}/{node_id}"
        call = self._client.describe_cluster_node
        return dict(_call("DescribeClusterNode", target, call, ClusterName=name, NodeId=node_id)["NodeDetails"])

    def list_events(
        self,
        name: str,
        *,
        after: Optional[datetime] = None,
        group: Optional[str] = None,
        node: Optional[str] = None,
        newest: Optional[int] = None,
    ) -> list[dict[str, Any]]:
        """ClusterEventSummaries, newest first; the `newest` so many only. AWS keeps them for Continuous clusters."""
        filters: dict[str, Any] = {"SortBy": "EventTime", "SortOrder": "Descending"}
        given = {"EventTimeAfter": after, "InstanceGroupName": group, "NodeId": node}
        filters.update({key: value for key, value in given.items() if value is not None})
        events: list[dict[str, Any]] = []
        for page in _pages("ListClusterEvents", name, self._client.list_cluster_events, **filters):
            events += [dict(event) for event in page.get("Events", [])]
            if newest is not None and len(events) >= newest:
                return events[:newest]
        return events

    def describe_event(self, name: str, event_id: str) -> dict[str, Any]:
        """EventDetails of one event: its summary's members, and what happened in a second EventDetails."""
        target = f"{name}/{event_id}"
        call = self._client.describe_cluster_event
        return dict(_call("DescribeClusterEvent", target, call, ClusterName=name, EventId=event_id)["EventDetails"])

    def delete_cluster(self, name: str) -> None:
        """Begin to delete a cluster."""
        _call("DeleteCluster", name, self._client.delete_cluster, ClusterName=name)

    def update_cluster(self, request: dict[str, Any]) -> None:
        """Begin to change a cluster."""
        _call("UpdateCluster", request["ClusterName"], self._client.update_cluster, **request)

    def update_software(self, request: dict[str, Any]) -> None:
        """Begin to give nodes a newer AMI."""
        _call("UpdateClusterSoftware", request["ClusterName"], self._client.update_cluster_software, **request)

    def replace_nodes(self, name: str, node_ids: Sequence[str]) -> Batched:
        """Begin to replace nodes, in batches of BATCH_LIMIT."""
        return _in_batches("BatchReplaceClusterNodes", name, self._client.batch_replace_cluster_nodes, node_ids)

    def reboot_nodes(self, name: str, node_ids: Sequence[str]) -> Batched:
        """Begin to restart nodes, in batches of BATCH_LIMIT."""
        return _in_batches("BatchRebootClusterNodes", name, self._client.batch_reboot_cluster_nodes, node_ids)

    def delete_nodes(self, name: str, node_ids: Sequence[str]) -> Batched:
        """Begin to delete nodes, in batches of BATCH_LIMIT."""
        call = self._client.batch_delete_cluster_nodes
        done, refused = _in_batches("BatchDeleteClusterNodes", name, call, node_ids)
        # Of the three batches this one alone names the member Code.
        return done, [{**entry, "ErrorCode": entry.get("ErrorCode", entry.get("Code", ""))} for entry in refused]


def _call(operation: str, target: str, call: Callable[..., Any], **request: Any) -> Any:
    def once() -> Any:
        with translated(operation, target):
            return call(**request)

    return with_retries(once)


def _pages(operation: str, name: str, call: Callable[..., Any], **filters: Any) -> Iterator[Mapping[str, Any]]:
    """Every page, each asked for again by itself when AWS throttles: a paginator would begin anew."""
    return responses.pages(
        f"{operation} {name}",
        lambda position: _call(operation, name, call, ClusterName=name, MaxResults=PAGE, **filters, **position),
        "NextToken",
    )


def _in_batches(operation: str, name: str, call: Callable[..., Any], node_ids: Sequence[str]) -> Batched:
    """All batches. When one fails after another was accepted, the rest are refusals: what was done must not be lost."""
    done: list[str] = []
    refused: list[dict[str, Any]] = []
    for start in range(0, len(node_ids), BATCH_LIMIT):
        try:
            response = _call(
                operation, name, call, ClusterName=name, NodeIds=list(node_ids[start : start + BATCH_LIMIT])
            )
        except (AwsError, Unreachable) as err:
            if not start:
                raise
            refused += [_not_sent(node, err) for node in node_ids[start:]]
            break
        done += response.get("Successful", [])
        refused += response.get("Failed", [])
    return done, refused


def _not_sent(node: str, err: HyperpodKitError) -> dict[str, Any]:
    return {"NodeId": node, "ErrorCode": NOT_SENT, "Message": err.message}


def _plain(response: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key != "ResponseMetadata"}
