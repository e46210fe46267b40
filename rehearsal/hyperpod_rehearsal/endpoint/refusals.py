"""What AWS answers to a request that nobody it knows has signed: S3 in XML, the others in JSON."""

from __future__ import annotations

import json
import uuid
from typing import Mapping

from hyperpod_rehearsal.credentials import signature
from hyperpod_rehearsal.credentials.signature import SignatureRefused
from hyperpod_rehearsal.endpoint.unsupported_services import HttpResponse, signed_service
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.xml import error_document

NEW_KEYS_HINT = 'In a rehearsal keys are new each time: eval "$(hyperpod-kit rehearse env)"'
_MATCH = "The request signature we calculated does not match the signature you provided. Check your"

_S3 = {
    signature.ABSENT: (403, "AccessDenied", "Access Denied"),
    signature.MALFORMED: (
        400,
        "AuthorizationHeaderMalformed",
        "The authorization header that you provided is not valid.",
    ),
    signature.UNKNOWN_KEY: (
        403,
        "InvalidAccessKeyId",
        f"The AWS Access Key Id you provided does not exist in our records. {NEW_KEYS_HINT}",
    ),
    signature.TOKEN: (400, "InvalidToken", "The provided token is malformed or otherwise invalid."),
    signature.SKEWED: (
        403,
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.",
    ),
    signature.WRONG: (403, "SignatureDoesNotMatch", f"{_MATCH} key and signing method."),
    signature.EXPIRED: (403, "AccessDenied", "Request has expired"),
    signature.QUERY: (400, "AuthorizationQueryParametersError", ""),
    signature.UNSIGNED_HEADERS: (
        403,
        "AccessDenied",
        "There were headers present in the request which were not signed",
    ),
    signature.NO_DIGEST: (
        400,
        "MissingSecurityHeader",
        "Your request was missing a required header: x-amz-content-sha256",
    ),
}
_JSON = {
    signature.ABSENT: (403, "MissingAuthenticationTokenException", "Missing Authentication Token"),
    signature.MALFORMED: (
        403,
        "IncompleteSignatureException",
        "Authorization header is not in the form of a signature",
    ),
    signature.UNKNOWN_KEY: (
        403,
        "UnrecognizedClientException",
        f"The security token included in the request is invalid. {NEW_KEYS_HINT}",
    ),
    signature.TOKEN: (403, "UnrecognizedClientException", "The security token included in the request is invalid."),
    signature.SKEWED: (403, "InvalidSignatureException", "Signature expired: it is more than 15 min off"),
    signature.WRONG: (403, "InvalidSignatureException", f"{_MATCH} AWS Secret Access Key and signing method."),
}
TARGET = "application/x-amz-json-1.1"


def signature_refusal_response(error: SignatureRefused, headers: Mapping[str, str], path: str) -> HttpResponse:
    """Return status, headers and body for a request whose signature was refused.

    `headers`: of the request, lower-case names; `path`: of it, for S3's document.
    """
    target = "x-amz-target" in headers
    if target or signed_service(headers) not in ("", "s3"):
        status, code, message = _JSON.get(error.reason, _JSON[signature.MALFORMED])
        # JSON 1.1 has 400 for whatever the client did; REST services say which kind.
        return (
            400 if target else status,
            {"Content-Type": TARGET if target else "application/json", "x-amzn-ErrorType": code},
            json.dumps({"__type": code, "message": message}).encode(),
        )
    status, code, message = _S3[error.reason]
    document = error_document(S3Error(status, code, message or error.message), path, uuid.uuid4().hex)
    return status, {"Content-Type": "application/xml"}, document


def access_denied_response(headers: Mapping[str, str], operation: str) -> HttpResponse:
    """Return the response to an operation that the nodes' role may not execute."""
    message = f"User: arn:aws:sts::111122223333:assumed-role/rehearsal/node is not authorized to perform: {operation}"
    if "x-amz-target" in headers or signed_service(headers) != "s3":
        return (
            400 if "x-amz-target" in headers else 403,
            {"Content-Type": TARGET, "x-amzn-ErrorType": "AccessDeniedException"},
            json.dumps({"__type": "AccessDeniedException", "message": message}).encode(),
        )
    return (
        403,
        {"Content-Type": "application/xml"},
        error_document(S3Error(403, "AccessDenied", message), "/", uuid.uuid4().hex),
    )
