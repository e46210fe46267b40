"""The value of a secret: one signed request to Secrets Manager or Parameter Store, tried again while that can help.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from typing import Any, Dict, Mapping, Optional

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.node.timing import Clock, wait_for
from hyperpod_kit.signing.exchange import send_http_request_or_status_zero
from hyperpod_kit.signing.request import sign_request_headers
from hyperpod_kit.signing.role import environment_or_node_role_credentials

WITHIN = 60.0
"""Seconds for one secret, all tries together: names and credentials may come late on a fresh node."""

ACTIONS = {"secretsmanager": "secretsmanager:GetSecretValue", "ssm": "ssm:GetParameter"}
"""Service -> what the node's role must be allowed."""

NOT_NOW = (
    "ThrottlingException",
    "InternalServiceError",
    "InternalFailure",
    "ServiceUnavailable",
    "ExpiredTokenException",
    "RequestExpired",
)
"""Answers that another try can change."""


def fetch(secret: Secret, clock: Clock, environ: Mapping[str, str] = os.environ, *, within: float = WITHIN) -> bytes:
    """Fetch the secret's value, trying again for `within` seconds. Raises NodeError, which names the ARN and
    never quotes a response's content."""
    last = ""

    def try_fetch() -> Optional[bytes]:
        nonlocal last
        role_credentials, last = environment_or_node_role_credentials(environ)
        if role_credentials is None:
            return None
        url = _endpoint(secret, environ)
        target, request = _target_and_request_fields(secret)
        body = json.dumps(request).encode()
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": target}
        digest = hashlib.sha256(body).hexdigest()
        signed_headers = sign_request_headers(
            role_credentials, secret.service, secret.region, "POST", url, headers, digest, clock.wall()
        )
        response = send_http_request_or_status_zero("POST", url, signed_headers, body)
        if response.status == 200:
            return _parse_secret_value(secret, response.body)
        if response.status:
            code = _parse_error_code(response.body)
        else:
            code = response.body.decode(errors="replace")
        if response.status:
            last = f"{url} answers {response.status} {code}"
        else:
            last = f"{url} does not answer: {code}"
        if response.status in range(400, 500) and response.status != 429 and code not in NOT_NOW:
            raise NodeError(
                f"{secret.arn}: {last}",
                hint=f"the node's role needs {ACTIONS[secret.service]} on it, and kms:Decrypt on its key",
            )
        return None

    value = wait_for(try_fetch, seconds=within, clock=clock, first=0.5)
    if value is None:
        raise NodeError(
            f"{secret.arn}: not fetched within {within:g} s: {last}",
            hint="a private subnet needs a VPC endpoint for " + secret.service,
        )
    return value


def _endpoint(secret: Secret, environ: Mapping[str, str]) -> str:
    variable = "AWS_ENDPOINT_URL_SECRETS_MANAGER"
    if secret.service == "ssm":
        variable = "AWS_ENDPOINT_URL_SSM"
    named = environ.get(variable)
    if secret.partition == "aws-cn":
        suffix = "amazonaws.com.cn"
    else:
        suffix = "amazonaws.com"
    url = named or environ.get("AWS_ENDPOINT_URL") or f"https://{secret.service}.{secret.region}.{suffix}"
    return url.rstrip("/") + "/"


def _target_and_request_fields(secret: Secret) -> tuple[str, Dict[str, Any]]:
    """(X-Amz-Target, request). A parameter may be named by its ARN since 2024, with or without a slash in its name."""
    if secret.service == "ssm":
        return "AmazonSSM.GetParameter", {"Name": secret.arn, "WithDecryption": True}
    return "secretsmanager.GetSecretValue", {"SecretId": secret.arn}


def _parse_secret_value(secret: Secret, body: bytes) -> bytes:
    try:
        document = json.loads(body)
        if secret.service == "ssm":
            return str(document["Parameter"]["Value"]).encode()
        if "SecretBinary" in document:
            return base64.b64decode(document["SecretBinary"])
        return str(document["SecretString"]).encode()
    except (ValueError, KeyError, TypeError):
        # The cause would carry the body.
        raise NodeError(f"{secret.arn}: the answer is none of {secret.service}") from None


def _parse_error_code(body: bytes) -> str:
    """`AccessDeniedException` of an error's body; messages are left out, for they can quote what was asked."""
    try:
        code = str(json.loads(body).get("__type", "")).rpartition("#")[2]
    except (ValueError, AttributeError):
        return ""
    if code.isalnum():
        return code
    return ""
