"""Requests that no S3 knows: faults and the request log, under `/_rehearsal/`.

POST   /_rehearsal/fault      a JSON object with the fields of `Fault`
GET    /_rehearsal/fault      the faults in force
DELETE /_rehearsal/fault      take all back
GET    /_rehearsal/requests   the last requests; DELETE forgets them
"""

from __future__ import annotations

import json
from dataclasses import asdict

from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.faults import S3Fault
from hyperpod_rehearsal.s3.messages import Response, S3Request
from hyperpod_rehearsal.s3.store import StoredBuckets

CONTROL_PREFIX = "_rehearsal"
"""First part of the path; no bucket can have this name."""


def handle_fault_or_request_log_call(store: StoredBuckets, request: S3Request) -> Response:
    """Execute a request on faults or the request log.

    Responds with JSON: 200, 400 for what is not a fault, 404 for anything else.
    """
    try:
        body = request.body.read()
        if request.key == "fault" and request.method in ("GET", "POST", "DELETE"):
            if request.method == "POST":
                store.faults.add(dataclass_from_json(S3Fault, json.loads(body)))
            elif request.method == "DELETE":
                store.faults.clear()
            return _json_response(store.faults.to_json())
        if request.key == "requests" and request.method in ("GET", "DELETE"):
            if request.method == "DELETE":
                store.requests.clear()
            return _json_response([asdict(entry) for entry in store.requests.entries()])
    except (ValueError, TypeError, S3Error) as err:
        return _json_response({"error": str(err)}, 400)
    return _json_response({"error": f"no {request.method} {request.key} here"}, 404)


def _json_response(content: object, status: int = 200) -> Response:
    return Response(status, {"Content-Type": "application/json"}, json.dumps(content).encode())
