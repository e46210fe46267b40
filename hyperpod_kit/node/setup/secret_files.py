"""Secrets as files in memory: /run/hyperpod-kit/secrets/NAME, 0400, for its owner alone.

/run is empty after a boot, so a unit fetches them again (templates/systemd/secrets.service.j2).
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.machine.timing import Clock, wait_for
from hyperpod_kit.node.setup.users import getent_entry
from hyperpod_kit.signing.exchange import send_http_request_or_status_zero
from hyperpod_kit.signing.request import sign_request_headers
from hyperpod_kit.signing.role import environment_or_node_role_credentials
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor

# The value of a secret: one signed request to Secrets Manager or Parameter Store, tried again while that can help.

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
        raise NodeError(f"{secret.arn}: the answer is not from {secret.service}") from None


def _parse_error_code(body: bytes) -> str:
    """`AccessDeniedException` of an error's body; messages are left out, for they can quote what was asked."""
    try:
        code = str(json.loads(body).get("__type", "")).rpartition("#")[2]
    except (ValueError, AttributeError):
        return ""
    if code.isalnum():
        return code
    return ""


# --- The files -------------------------------------------------------------------------------------------------------

Fetch = Callable[[Secret, Clock], bytes]


def secrets_for_node_role(node: Node) -> Tuple[Secret, ...]:
    """The secrets that this node is to have."""
    return tuple(secret for secret in node.config.secrets if node.facts.role in secret.roles)


def missing_secret_names(node: Node) -> List[str]:
    """Names of the secrets whose files are not there."""
    return [secret.name for secret in secrets_for_node_role(node) if not os.path.isfile(node.paths.secret(secret.name))]


def fetch_secrets_and_delete_unneeded(node: Node, fetch_secret: Fetch = fetch) -> List[str]:
    """Fetch all secrets into their files, and delete the files of those that the configuration no longer
    names; return the names of those that changed.

    Raises NodeError.
    """
    expected = {secret.name: secret for secret in secrets_for_node_role(node)}
    folder = os.path.dirname(node.paths.secret("x"))
    changed = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name not in expected:
            by_descriptor.unlink(os.path.join(folder, name))
            changed.append(name)
    for name, secret in expected.items():
        if _write_secret_if_different(
            node.paths.secret(name), fetch_secret(secret, node.clock), *_owner_ids(node, secret)
        ):
            changed.append(name)
    return changed


def _owner_ids(node: Node, secret: Secret) -> Tuple[int, int]:
    account = getent_entry(node, "passwd", secret.owner)
    if account is None:
        raise NodeError(
            f"secret {secret.name}: its owner {secret.owner} does not exist on this node",
            hint="add the user under hyperpod_kit.users, or choose another owner",
        )
    return int(account[2]), int(account[3])


def _write_secret_if_different(path: str, value: bytes, uid: int, gid: int) -> bool:
    """Make `path` hold `value` for that owner alone; True when anything changed. At no moment can others read it."""
    folder = os.path.dirname(path)
    by_descriptor.make_directories(folder)
    # Everybody may open a file whose name they know and whose owner they are; nobody may list the names.
    by_descriptor.set_mode(folder, 0o711)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        handle = -1
    if handle >= 0:
        with open(handle, "rb") as stream:
            status = os.fstat(stream.fileno())
            if (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (
                uid,
                gid,
                0o400,
            ) and stream.read() == value:
                return False
    atomic_file.write_atomically(path, value, 0o400, owner=(uid, gid))
    return True


def _apply_secrets(node: Node) -> StepOutcome:
    changed = fetch_secrets_and_delete_unneeded(node)
    return StepOutcome(bool(changed), ", ".join(changed))


def _describe_pending_changes(node: Node) -> str:
    names = missing_secret_names(node)
    if names:
        return f"fetch {', '.join(names)}"
    return ""


STEP = Step("secrets", _apply_secrets, _describe_pending_changes)
