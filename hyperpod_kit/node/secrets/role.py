"""The credentials of this node's role: from the environment where somebody set them, else from the metadata service.

Only IMDSv2, which needs a token: version 1 may be switched off. Standard library only, Python 3.8: this file is part
of the bundle.
"""

from __future__ import annotations

import json
from typing import Mapping, Optional, Tuple

from hyperpod_kit.node.secrets.exchange import exchange
from hyperpod_kit.node.secrets.sign import Credentials

METADATA = "http://169.254.169.254"
ROLES = "/latest/meta-data/iam/security-credentials/"


def credentials(environ: Mapping[str, str]) -> Tuple[Optional[Credentials], str]:
    """(the credentials, or None; why there are none)."""
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return Credentials(
            environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"], environ.get("AWS_SESSION_TOKEN", "")
        ), ""
    base = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", METADATA).rstrip("/")
    token = exchange(
        "PUT", f"{base}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}, b"", proxies=False
    )
    if token.status != 200:
        return None, f"the metadata service at {base} gives no token: {_why(token.status, token.body)}"
    headers = {"X-aws-ec2-metadata-token": token.body.decode("ascii", "replace").strip()}
    role = exchange("GET", base + ROLES, headers, proxies=False)
    name = role.body.decode("ascii", "replace").split("\n")[0].strip()
    if role.status != 200 or not name:
        return None, f"the metadata service at {base} knows no role of this node: {_why(role.status, role.body)}"
    answer = exchange("GET", base + ROLES + name, headers, proxies=False)
    try:
        said = json.loads(answer.body)
        return Credentials(said["AccessKeyId"], said["SecretAccessKey"], said["Token"]), ""
    except (ValueError, KeyError, TypeError):
        return None, f"the metadata service at {base} has no credentials of role {name}: status {answer.status}"


def _why(status: int, body: bytes) -> str:
    return f"status {status}" if status else body.decode(errors="replace")
