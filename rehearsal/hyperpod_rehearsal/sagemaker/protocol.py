"""AWS JSON 1.1: from an X-Amz-Target and a body to a status and a body."""

from __future__ import annotations

import json
from typing import Any, Callable, Mapping

from hyperpod_kit.aws.shapes import service_model
from hyperpod_rehearsal.sagemaker.api import ApiError, ControlPlane
from hyperpod_rehearsal.sagemaker.listing import (
    cluster_page,
    event_page,
    find_event_details,
    find_operation,
    node_page,
    operation_page,
    tag_page,
)
from hyperpod_rehearsal.sagemaker.model import (
    WrongType,
    request_violations,
    response_shape_violations,
    validation_message,
)

TARGET_PREFIX = "SageMaker."

Operation = Callable[[ControlPlane, Mapping[str, Any]], Mapping[str, Any]]

OPERATIONS: dict[str, Operation] = {
    "CreateCluster": lambda control, request: {"ClusterArn": control.create_cluster(request)},
    "DescribeCluster": lambda control, request: control.describe_cluster(request["ClusterName"]),
    "ListClusters": lambda control, request: cluster_page(control.list_clusters(), request),
    "ListClusterNodes": lambda control, request: node_page(control.list_cluster_nodes(request["ClusterName"]), request),
    "DescribeClusterNode": lambda control, request: {
        "NodeDetails": control.describe_cluster_node(request["ClusterName"], _requested_node_id(request))
    },
    "ListClusterEvents": lambda control, request: event_page(
        control.list_cluster_events(request["ClusterName"]), request
    ),
    "DescribeClusterEvent": lambda control, request: find_event_details(
        control.list_cluster_events(request["ClusterName"]), request
    ),
    "ListClusterOperations": lambda control, request: operation_page(
        control.list_cluster_operations(request["ClusterName"]), request
    ),
    "DescribeClusterOperation": lambda control, request: find_operation(
        control.list_cluster_operations(request["ClusterName"]), request
    ),
    "StartClusterHealthCheck": lambda control, request: {"ClusterArn": control.start_cluster_health_check(request)},
    "DescribeTrainingPlan": lambda control, request: control.describe_training_plan(request["TrainingPlanName"]),
    "UpdateCluster": lambda control, request: {"ClusterArn": control.update_cluster(request)},
    "DeleteCluster": lambda control, request: {"ClusterArn": control.delete_cluster(request["ClusterName"])},
    "UpdateClusterSoftware": lambda control, request: {"ClusterArn": control.update_cluster_software(request)},
    "BatchReplaceClusterNodes": lambda control, request: control.batch_replace_cluster_nodes(request),
    "BatchRebootClusterNodes": lambda control, request: control.batch_reboot_cluster_nodes(request),
    "BatchDeleteClusterNodes": lambda control, request: control.batch_delete_cluster_nodes(request),
    "BatchAddClusterNodes": lambda control, request: control.batch_add_cluster_nodes(request),
    "AddTags": lambda control, request: {
        "Tags": _tags_as_list(control.add_tags(request["ResourceArn"], request["Tags"]))
    },
    "ListTags": lambda control, request: tag_page(_tags_as_list(control.tags(request["ResourceArn"])), request),
    "DeleteTags": lambda control, request: _delete_tags(control, request),
}
"""What is implemented; every other operation of SageMaker is refused by its name."""


def handle_call(control: ControlPlane, target: str, body: bytes) -> tuple[int, bytes]:
    """HTTP status and JSON body for one call; never raises."""
    try:
        result = execute_call(control, target, body)
    except ApiError as err:
        return err.status, json.dumps({"__type": err.code, "message": err.message}).encode()
    except Exception as err:  # a client must get an answer, whatever broke behind it
        return 500, json.dumps({"__type": "InternalFailure", "message": f"{type(err).__name__}: {err}"}).encode()
    return 200, json.dumps(result).encode()


def execute_call(control: ControlPlane, target: str, body: bytes) -> Mapping[str, Any]:
    """Validate a request, execute its operation and check the response. Raises ApiError."""
    name = ""
    if target.startswith(TARGET_PREFIX):
        name = target[len(TARGET_PREFIX) :]
    if name not in service_model("sagemaker").operation_names:
        raise ApiError("UnknownOperationException", f"{target} is no operation of SageMaker")
    operation = OPERATIONS.get(name)
    if operation is None:
        raise ApiError(
            "UnknownOperationException",
            f"the rehearsal does not implement {name}; of SageMaker it has {', '.join(sorted(OPERATIONS))}",
        )
    request = parse_request(body)
    try:
        violations = request_violations(name, request)
    except WrongType as err:
        raise ApiError("SerializationException", str(err)) from None
    if violations:
        raise ApiError("ValidationException", validation_message(violations))
    result = operation(control, request)
    try:
        wrong = response_shape_violations(name, result)
    except WrongType as err:
        wrong = [str(err)]
    if wrong:
        raise ApiError("InternalFailure", f"the answer is not of the shape of {name}: {'; '.join(wrong)}", status=500)
    return result


def parse_request(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises ApiError SerializationException."""
    try:
        request = json.loads(body or b"{}")
    except ValueError as err:
        raise ApiError("SerializationException", f"the body is no JSON: {err}") from None
    if not isinstance(request, dict):
        raise ApiError("SerializationException", "the body is not a JSON object")
    return request


def _requested_node_id(request: Mapping[str, Any]) -> str:
    given = [request[field] for field in ("NodeId", "NodeLogicalId") if field in request]
    if len(given) != 1:
        raise ApiError("ValidationException", "Exactly one of NodeId and NodeLogicalId must be provided.")
    return str(given[0])


def _delete_tags(control: ControlPlane, request: Mapping[str, Any]) -> Mapping[str, Any]:
    control.delete_tags(request["ResourceArn"], request["TagKeys"])
    return {}


def _tags_as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
