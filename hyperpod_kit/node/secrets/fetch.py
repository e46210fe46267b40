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
from hyperpod_kit.signing.exchange import exchange
from hyperpod_kit.signing.request import signed
from hyperpod_kit.signing.role import credentials

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
    """The value. Raises NodeError, which names the ARN and never quotes an answer's content."""
    last = ""

    def attempt() -> Optional[bytes]:
        nonlocal last
        own, last = credentials(environ)
        if own is None:
            return None
        url = _endpoint(secret, environ)
        target, question = _question(secret)
        body = json.dumps(question).encode()
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": target}
        digest = hashlib.sha256(body).hexdigest()
        signed_headers = signed(own, secret.service, secret.region, "POST", url, headers, digest, clock.wall())
        answer = exchange("POST", url, signed_headers, body)
        if answer.status == 200:
            return _value(secret, answer.body)
        code = _code(answer.body) if answer.status else answer.body.decode(errors="replace")
        last = f"{url} answers {answer.status} {code}" if answer.status else f"{url} does not answer: {code}"
        if answer.status in range(400, 500) and answer.status != 429 and code not in NOT_NOW:
            raise NodeError(
                f"{secret.arn}: {last}",
                hint=f"the node's role needs {ACTIONS[secret.service]} on it, and kms:Decrypt on its key",
            )
        return None

    value = wait_for(attempt, seconds=within, clock=clock, first=0.5)
    if value is None:
        raise NodeError(
            f"{secret.arn}: not fetched within {within:g} s: {last}",
            hint="a private subnet needs a VPC endpoint for " + secret.service,
        )
    return value


def _endpoint(secret: Secret, environ: Mapping[str, str]) -> str:
    named = environ.get(f"AWS_ENDPOINT_URL_{'SSM' if secret.service == 'ssm' else 'SECRETS_MANAGER'}")
    suffix = "amazonaws.com.cn" if secret.partition == "aws-cn" else "amazonaws.com"
    url = named or environ.get("AWS_ENDPOINT_URL") or f"https://{secret.service}.{secret.region}.{suffix}"
    return url.rstrip("/") + "/"


def _question(secret: Secret) -> tuple[str, Dict[str, Any]]:
    """(X-Amz-Target, request). A parameter may be named by its ARN since 2024, with or without a slash in its name."""
    if secret.service == "ssm":
        return "AmazonSSM.GetParameter", {"Name": secret.arn, "WithDecryption": True}
    return "secretsmanager.GetSecretValue", {"SecretId": secret.arn}


def _value(secret: Secret, body: bytes) -> bytes:
    try:
        said = json.loads(body)
        if secret.service == "ssm":
            return str(said["Parameter"]["Value"]).encode()
        if "SecretBinary" in said:
            return base64.b64decode(said["SecretBinary"])
        return str(said["SecretString"]).encode()
    except (ValueError, KeyError, TypeError):
        # The cause would carry the body.
        raise NodeError(f"{secret.arn}: the answer is none of {secret.service}") from None


def _code(body: bytes) -> str:
    """`AccessDeniedException` of an error's body; messages are left out, for they can quote what was asked."""
    try:
        code = str(json.loads(body).get("__type", "")).rpartition("#")[2]
    except (ValueError, AttributeError):
        return ""
    return code if code.isalnum() else ""
