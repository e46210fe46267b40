"""The answer to a client of an AWS service that a rehearsal does not have: which ones it has, in its own format."""

from __future__ import annotations

import json
from typing import Mapping
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

CODE = "UnknownOperationException"
XML_BY_REST = ("route53", "cloudfront")
"""Services that answer plain REST calls in XML; the others do in JSON."""

HttpResponse = tuple[int, dict[str, str], bytes]


def signed_service(headers: Mapping[str, str]) -> str:
    """The service in a signature's scope, "" without a signature. `headers`: with lower-case names."""
    _, separator, rest = headers.get("authorization", "").partition("Credential=")
    scope = rest.partition(",")[0].split("/")
    if separator and len(scope) >= 4:
        return scope[-2]
    return ""


def unsupported_service_response(headers: Mapping[str, str], body: bytes) -> HttpResponse:
    """Return the error response for a service that a rehearsal does not have, in the service's own format."""
    service, target = signed_service(headers), headers.get("x-amz-target", "")
    kind = headers.get("content-type", "")
    if "x-www-form-urlencoded" in kind:
        form = parse_qs(body.decode("utf-8", "replace"))
    else:
        form = {}
    called = target.rpartition(".")[2] or form.get("Action", [""])[0]
    if called and service:
        what = f"{called} of {service}"
    else:
        what = called or service
    message = f"only SageMaker's clusters, S3, EFS and the nodes' logs are here: this is a rehearsal and has no {what}"
    if form and service == "ec2":
        return 400, {"Content-Type": "text/xml"}, _xml_error(message, "<Response><Errors>{}</Errors></Response>")
    if form or service in XML_BY_REST:
        return 400, {"Content-Type": "text/xml"}, _xml_error(message, "<ErrorResponse>{}</ErrorResponse>")
    return (
        400,
        {"Content-Type": kind if "json" in kind else "application/json", "x-amzn-ErrorType": CODE},
        json.dumps({"__type": CODE, "message": message}).encode(),
    )


def _xml_error(message: str, template: str) -> bytes:
    error = f"<Error><Type>Sender</Type><Code>{CODE}</Code><Message>{escape(message)}</Message></Error>"
    return ('<?xml version="1.0" encoding="UTF-8"?>\n' + template.format(error)).encode()
