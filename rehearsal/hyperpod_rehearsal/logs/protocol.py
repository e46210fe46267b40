"""CloudWatch Logs' AWS JSON 1.1: from an X-Amz-Target and a body to a status and a body."""

from __future__ import annotations

import json
from typing import Any, Callable, Mapping

from hyperpod_kit.aws import request_shape
from hyperpod_rehearsal.logs.service import LogsError, LogsService

TARGET_PREFIX = "Logs_20140328."

OPERATIONS: dict[str, Callable[[LogsService, Mapping[str, Any]], dict[str, Any]]] = {
    "FilterLogEvents": LogsService.filter_log_events,
    "GetLogEvents": LogsService.get_log_events,
}


def handle_call(service: LogsService, target: str, body: bytes) -> tuple[int, bytes]:
    """HTTP status and JSON body for one call; never raises."""
    try:
        result = _route_call(service, target[len(TARGET_PREFIX) :], body)
    except LogsError as err:
        return 400, json.dumps({"__type": err.code, "message": err.message}).encode()
    except Exception as err:  # a client must get an answer, whatever broke behind it
        return 500, json.dumps({"__type": "InternalFailure", "message": f"{type(err).__name__}: {err}"}).encode()
    return 200, json.dumps(result).encode()


def _route_call(service: LogsService, name: str, body: bytes) -> dict[str, Any]:
    operation = OPERATIONS.get(name)
    if operation is None:
        raise LogsError("UnknownOperationException", f"the rehearsal does not implement {name} of CloudWatch Logs")
    try:
        request = json.loads(body or b"{}")
    except ValueError as err:
        raise LogsError("SerializationException", str(err)) from None
    if not isinstance(request, dict):
        raise LogsError("SerializationException", "the request is not an object")
    refused = request_shape.find_request_problems("logs", name, request)
    if refused:
        raise LogsError("InvalidParameterException", "; ".join(map(str, refused)))
    return operation(service, request)
