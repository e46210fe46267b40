"""EFS's REST calls: from method, path and query to an operation with its request, and back to a status and a body."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from hyperpod_kit.aws import request_shape
from hyperpod_rehearsal.efs.service import EfsError, EfsService

PREFIX = "/2015-02-01/"

ROUTES = (
    ("POST", re.compile(r"access-points"), "CreateAccessPoint", 200),
    ("GET", re.compile(r"access-points"), "DescribeAccessPoints", 200),
    ("DELETE", re.compile(r"access-points/(?P<AccessPointId>[^/]+)"), "DeleteAccessPoint", 204),
    ("GET", re.compile(r"file-systems"), "DescribeFileSystems", 200),
    ("GET", re.compile(r"file-systems/(?P<FileSystemId>[^/]+)/policy"), "DescribeFileSystemPolicy", 200),
    ("PUT", re.compile(r"file-systems/(?P<FileSystemId>[^/]+)/policy"), "PutFileSystemPolicy", 200),
    ("DELETE", re.compile(r"file-systems/(?P<FileSystemId>[^/]+)/policy"), "DeleteFileSystemPolicy", 200),
)
NUMBERS = ("MaxResults", "MaxItems")


def handle_call(service: EfsService, method: str, target: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, JSON) of one call; never raises."""
    try:
        status, result = _route_call(service, method, target, body)
    except EfsError as err:
        text = {"ErrorCode": err.code, "Message": err.message, **err.more}
        return err.status, {"x-amzn-ErrorType": err.code}, json.dumps(text).encode()
    except Exception as err:  # a client must get an answer, whatever broke behind it
        text = {"ErrorCode": "InternalServerError", "Message": f"{type(err).__name__}: {err}"}
        return 500, {"x-amzn-ErrorType": "InternalServerError"}, json.dumps(text).encode()
    return status, {}, b"" if status == 204 else json.dumps(result).encode()


def _route_call(service: EfsService, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
    url = urlsplit(target)
    for verb, pattern, operation, status in ROUTES:
        match = pattern.fullmatch(unquote(url.path)[len(PREFIX) :])
        if verb != method or match is None:
            continue
        query = {
            key: int(value) if key in NUMBERS and value.isdigit() else value
            for key, value in parse_qsl(url.query, keep_blank_values=True)
        }
        request = {**query, **_parse_json_object(body), **match.groupdict()}
        refused = request_shape.find_request_problems("efs", operation, request)
        if refused:
            raise EfsError(400, "BadRequest", "; ".join(map(str, refused)))
        return status, service.execute_operation(operation, request)
    raise EfsError(400, "BadRequest", f"the rehearsal does not implement {method} {url.path}")


def _parse_json_object(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body or b"{}")
    except ValueError as err:
        raise EfsError(400, "BadRequest", f"the body is no JSON: {err}") from None
    if not isinstance(request, dict):
        raise EfsError(400, "BadRequest", "the body is not a JSON object")
    return request
