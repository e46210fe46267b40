"""The HyperPod calls of SageMaker, one method each; errors are ours. Calls that AWS throttles are repeated here."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_kit.aws.errors import translate_aws_errors
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
        """Return the region that calls go to."""
        return str(self._client.meta.region_name)

    def create_cluster(self, request: dict[str, Any]) -> str:
        """Create a cluster and return its ARN."""
        return str(
            _call_with_retries("CreateCluster", request["ClusterName"], self._client.create_cluster, **request)[
                "ClusterArn"
            ]
        )

    def describe_cluster(self, name: str) -> dict[str, Any]:
        """DescribeCluster's answer without the transport's metadata."""
        return _without_response_metadata(
            _call_with_retries("DescribeCluster", name, self._client.describe_cluster, ClusterName=name)
        )

    def list_clusters(self) -> list[dict[str, Any]]:
        """Return the ClusterSummaries of all pages."""
        call = self._client.list_clusters
        pages = responses.fetch_pages(
            "ListClusters",
            lambda position: _call_with_retries("ListClusters", self.region, call, MaxResults=PAGE, **position),
            "NextToken",
        )
        return [dict(cluster) for page in pages for cluster in page.get("ClusterSummaries", [])]

    def list_nodes(self, name: str) -> list[dict[str, Any]]:
        """Return the ClusterNodeSummaries of all pages."""
        pages = _fetch_pages("ListClusterNodes", name, self._client.list_cluster_nodes)
        return [dict(node) for page in pages for node in page.get("ClusterNodeSummaries", [])]

    def describe_node(self, name: str, node_id: str) -> dict[str, Any]:
        """NodeDetails of one node: the only answer that holds its IP address."""
        target = f"{name}/{node_id}"
        call = self._client.describe_cluster_node
        return dict(
            _call_with_retries("DescribeClusterNode", target, call, ClusterName=name, NodeId=node_id)["NodeDetails"]
        )

    def list_events(
        self,
        name: str,
        *,
        after: Optional[datetime] = None,
        group: Optional[str] = None,
        node: Optional[str] = None,
        newest: Optional[int] = None,
    ) -> list[dict[str, Any]]:
        """Return the events, newest first; only the `newest` so many. AWS keeps them for Continuous clusters."""
        filters: dict[str, Any] = {"SortBy": "EventTime", "SortOrder": "Descending"}
        given = {"EventTimeAfter": after, "InstanceGroupName": group, "NodeId": node}
        filters.update({key: value for key, value in given.items() if value is not None})
        events: list[dict[str, Any]] = []
        for page in _fetch_pages("ListClusterEvents", name, self._client.list_cluster_events, **filters):
            events += [dict(event) for event in page.get("Events", [])]
            if newest is not None and len(events) >= newest:
                return events[:newest]
        return events

    def describe_event(self, name: str, event_id: str) -> dict[str, Any]:
        """EventDetails of one event: its summary's members, and what happened in a second EventDetails."""
        target = f"{name}/{event_id}"
        call = self._client.describe_cluster_event
        return dict(
            _call_with_retries("DescribeClusterEvent", target, call, ClusterName=name, EventId=event_id)["EventDetails"]
        )

    def list_operations(
        self, name: str, *, status: Optional[str] = None, kind: Optional[str] = None, newest: Optional[int] = None
    ) -> list[dict[str, Any]]:
        """Return the ClusterOperationSummaries, newest first; only the `newest` so many."""
        filters = {"SortBy": "CreationTime", "SortOrder": "Descending"}
        filters.update({key: value for key, value in (("Status", status), ("Type", kind)) if value is not None})
        operations: list[dict[str, Any]] = []
        for page in _fetch_pages("ListClusterOperations", name, self._client.list_cluster_operations, **filters):
            operations += [dict(operation) for operation in page.get("ClusterOperationSummaries", [])]
            if newest is not None and len(operations) >= newest:
                return operations[:newest]
        return operations

    def describe_operation(self, name: str, operation_id: str) -> dict[str, Any]:
        """DescribeClusterOperation's answer: a summary's members and the details of its type."""
        target = f"{name}/{operation_id}"
        call = self._client.describe_cluster_operation
        return _without_response_metadata(
            _call_with_retries("DescribeClusterOperation", target, call, ClusterName=name, OperationId=operation_id)
        )

    def start_health_check(self, name: str, configurations: Sequence[Mapping[str, Any]]) -> None:
        """Begin deep health checks: DeepHealthCheckConfigurations with InstanceGroupName, InstanceIds and checks."""
        _call_with_retries(
            "StartClusterHealthCheck",
            name,
            self._client.start_cluster_health_check,
            ClusterName=name,
            DeepHealthCheckConfigurations=[dict(entry) for entry in configurations],
        )

    def describe_training_plan(self, arn: str) -> dict[str, Any]:
        """DescribeTrainingPlan's answer: until when it serves, and how many of its nodes are free."""
        call = self._client.describe_training_plan
        return _without_response_metadata(_call_with_retries("DescribeTrainingPlan", arn, call, TrainingPlanName=arn))

    def delete_cluster(self, name: str) -> None:
        """Begin to delete a cluster."""
        _call_with_retries("DeleteCluster", name, self._client.delete_cluster, ClusterName=name)

    def update_cluster(self, request: dict[str, Any]) -> None:
        """Begin to change a cluster."""
        _call_with_retries("UpdateCluster", request["ClusterName"], self._client.update_cluster, **request)

    def update_software(self, request: dict[str, Any]) -> None:
        """Begin to give nodes a newer AMI."""
        _call_with_retries(
            "UpdateClusterSoftware", request["ClusterName"], self._client.update_cluster_software, **request
        )

    def replace_nodes(self, name: str, node_ids: Sequence[str]) -> Batched:
        """Begin to replace nodes, in batches of BATCH_LIMIT."""
        return _call_in_batches("BatchReplaceClusterNodes", name, self._client.batch_replace_cluster_nodes, node_ids)

    def reboot_nodes(self, name: str, node_ids: Sequence[str]) -> Batched:
        """Begin to restart nodes, in batches of BATCH_LIMIT."""
        return _call_in_batches("BatchRebootClusterNodes", name, self._client.batch_reboot_cluster_nodes, node_ids)

    def delete_nodes(self, name: str, node_ids: Sequence[str]) -> Batched:
        """Begin to delete nodes, in batches of BATCH_LIMIT."""
        call = self._client.batch_delete_cluster_nodes
        done, refused = _call_in_batches("BatchDeleteClusterNodes", name, call, node_ids)
        # Of the three batches this one alone names the member Code.
        return done, [{**entry, "ErrorCode": entry.get("ErrorCode", entry.get("Code", ""))} for entry in refused]


def _call_with_retries(operation: str, target: str, call: Callable[..., Any], **request: Any) -> Any:
    def once() -> Any:
        with translate_aws_errors(operation, target):
            return call(**request)

    return retry_while_throttled(once)


def _fetch_pages(operation: str, name: str, call: Callable[..., Any], **filters: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every page; a throttled one is fetched again by itself, where a paginator would begin anew."""
    return responses.fetch_pages(
        f"{operation} {name}",
        lambda position: _call_with_retries(
            operation, name, call, ClusterName=name, MaxResults=PAGE, **filters, **position
        ),
        "NextToken",
    )


def _call_in_batches(operation: str, name: str, call: Callable[..., Any], node_ids: Sequence[str]) -> Batched:
    """Send all node ids in batches and return what was accepted and what was refused.

    When a batch fails after another was accepted, the rest are refusals: what was done must not be lost. When
    the first one fails, its error is raised.
    """
    done: list[str] = []
    refused: list[dict[str, Any]] = []
    for start in range(0, len(node_ids), BATCH_LIMIT):
        try:
            response = _call_with_retries(
                operation, name, call, ClusterName=name, NodeIds=list(node_ids[start : start + BATCH_LIMIT])
            )
        except (AwsError, Unreachable) as err:
            if not start:
                raise
            refused += [_refusal_of_unsent_node(node, err) for node in node_ids[start:]]
            break
        done += response.get("Successful", [])
        refused += response.get("Failed", [])
    return done, refused


def _refusal_of_unsent_node(node: str, err: HyperpodKitError) -> dict[str, Any]:
    return {"NodeId": node, "ErrorCode": NOT_SENT, "Message": err.message}


def _without_response_metadata(response: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key != "ResponseMetadata"}
