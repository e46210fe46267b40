"""Filters, order and paging of the List operations, over the full list of the control plane."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any, Mapping, Sequence

from hyperpod_rehearsal.sagemaker.api import ApiError

PAGE = 10
"""Entries of a page when MaxResults is not given. What AWS takes is not written down for every operation; a small
number makes a client that forgets NextToken fail here and not there."""


def cluster_page(clusters: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ListClusters."""
    chosen = [
        item
        for item in clusters
        if request.get("NameContains", "") in item["ClusterName"] and _is_within_times(item["CreationTime"], request)
    ]
    ordered = _sort_as_requested(chosen, request, {"NAME": "ClusterName", "CREATION_TIME": "CreationTime"})
    return _build_page("ClusterSummaries", ordered, request)


def node_page(nodes: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ListClusterNodes."""
    group = request.get("InstanceGroupNameContains", "")
    chosen = [
        item for item in nodes if group in item["InstanceGroupName"] and _is_within_times(item["LaunchTime"], request)
    ]
    ordered = _sort_as_requested(chosen, request, {"NAME": "InstanceGroupName", "CREATION_TIME": "LaunchTime"})
    if not request.get("IncludeNodeLogicalIds"):
        ordered = [{key: value for key, value in item.items() if key != "NodeLogicalId"} for item in ordered]
    return _build_page("ClusterNodeSummaries", ordered, request)


def event_page(events: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ListClusterEvents: summaries, the newest first where no order is asked for."""
    filters = {
        member: request[parameter]
        for parameter, member in (
            ("InstanceGroupName", "InstanceGroupName"),
            ("NodeId", "InstanceId"),
            ("ResourceType", "ResourceType"),
            ("OperationId", "OperationId"),
        )
        if parameter in request
    }
    chosen = [
        {key: value for key, value in event.items() if key != "EventDetails"}
        for event in events
        if all(event.get(member) == value for member, value in filters.items())
        and _is_within_times(event["EventTime"], request, "EventTime")
    ]
    if request.get("SortOrder") == "Ascending":
        ordered = chosen
    else:
        ordered = chosen[::-1]
    return _build_page("Events", ordered, request)


def find_event_details(events: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of DescribeClusterEvent. Raises ApiError."""
    for event in events:
        if event["EventId"] == request["EventId"]:
            return {"EventDetails": dict(event)}
    raise ApiError("ResourceNotFound", f"Event {request['EventId']} not found.")


OPERATION_SUMMARY = ("OperationId", "ClusterArn", "Type", "Status", "CreationTime")


def operation_page(operations: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ListClusterOperations: summaries, the newest first where no order is asked for."""
    chosen = [
        {key: operation[key] for key in OPERATION_SUMMARY}
        for operation in operations
        if all(operation[key] == request.get(key, operation[key]) for key in ("Status", "Type"))
        and _is_within_times(operation["CreationTime"], request)
    ]
    if request.get("SortOrder") != "Ascending":
        chosen = chosen[::-1]
    return _build_page("ClusterOperationSummaries", chosen, request)


def find_operation(operations: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of DescribeClusterOperation. Raises ApiError."""
    for operation in operations:
        if operation["OperationId"] == request["OperationId"]:
            return dict(operation)
    raise ApiError("ResourceNotFound", f"Operation {request['OperationId']} not found.")


def tag_page(tags: Sequence[Mapping[str, str]], request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ListTags."""
    return _build_page("Tags", tags, request)


def _is_within_times(time: float, request: Mapping[str, Any], parameter_prefix: str = "CreationTime") -> bool:
    after: float = request.get(f"{parameter_prefix}After", time)
    before: float = request.get(f"{parameter_prefix}Before", time)
    return after <= time <= before


def _sort_as_requested(
    items: Sequence[Mapping[str, Any]], request: Mapping[str, Any], members: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    member = members[request.get("SortBy", "CREATION_TIME")]
    return sorted(items, key=lambda item: item[member], reverse=request.get("SortOrder") == "Descending")


def _build_page(member: str, items: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    filters = {name: value for name, value in sorted(request.items()) if name not in ("NextToken", "MaxResults")}
    request_digest = hashlib.sha256(json.dumps(filters).encode()).hexdigest()[:16]
    start = 0
    if "NextToken" in request:
        start = _decode_token(request["NextToken"], request_digest)
    end = start + request.get("MaxResults", PAGE)
    response: dict[str, Any] = {member: list(items[start:end])}
    if end < len(items):
        response["NextToken"] = base64.b64encode(f"{request_digest}:{end}".encode()).decode()
    return response


def _decode_token(token: str, request_digest: str) -> int:
    """Return the offset of a token. Raises ApiError when it belongs to another request."""
    try:
        token_digest, _, position = base64.b64decode(token, validate=True).decode("ascii").partition(":")
        if token_digest == request_digest:
            return int(position)
    except (binascii.Error, ValueError):
        pass
    raise ApiError("ValidationException", "The pagination token is invalid for the specified request")
