"""What the metadata service says of this node: the credentials of its role, its region and its id.

Only IMDSv2, which needs a token: version 1 may be switched off. Standard library only, Python 3.8: this file is part
of the bundle.
"""

from __future__ import annotations

import calendar
import json
import time
from typing import Dict, Mapping, Optional, Tuple

from hyperpod_kit.signing.exchange import send_http_request_or_status_zero
from hyperpod_kit.signing.request import Credentials

METADATA = "http://169.254.169.254"
ROLES = "/latest/meta-data/iam/security-credentials/"
REGION = "/latest/meta-data/placement/region"
INSTANCE_ID = "/latest/meta-data/instance-id"


def environment_or_node_role_credentials(environ: Mapping[str, str]) -> Tuple[Optional[Credentials], str]:
    """(the credentials, from the environment where somebody set them, or None; why there are none)."""
    configured = environment_credentials(environ)
    if configured:
        return (configured, "")
    return node_role_credentials(environ)


def environment_credentials(environ: Mapping[str, str]) -> Optional[Credentials]:
    """Return the credentials that are set in the environment, or None."""
    if not environ.get("AWS_ACCESS_KEY_ID") or not environ.get("AWS_SECRET_ACCESS_KEY"):
        return None
    return Credentials(
        environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"], environ.get("AWS_SESSION_TOKEN", "")
    )


def node_role_credentials(environ: Mapping[str, str]) -> Tuple[Optional[Credentials], str]:
    """(the credentials of the node's role, or None; why there are none)."""
    base, headers, reason = _metadata_base_url_and_token_headers(environ)
    if reason:
        return None, reason
    role = send_http_request_or_status_zero("GET", base + ROLES, headers, proxies=False)
    name = role.body.decode("ascii", "replace").split("\n")[0].strip()
    if role.status != 200 or not name:
        return (
            None,
            f"the metadata service at {base} has no role for this node: {_failure_text(role.status, role.body)}",
        )
    response = send_http_request_or_status_zero("GET", base + ROLES + name, headers, proxies=False)
    try:
        document = json.loads(response.body)
        node_credentials = Credentials(
            document["AccessKeyId"], document["SecretAccessKey"], document["Token"], _expiry_or_zero(document)
        )
        return node_credentials, ""
    except (ValueError, KeyError, TypeError):
        return None, f"the metadata service at {base} has no credentials of role {name}: status {response.status}"


def node_region_or_empty(environ: Mapping[str, str]) -> str:
    """The region that this node is in, "" where nobody says."""
    return _metadata_entry_or_empty(environ, REGION)


def instance_id_or_empty(environ: Mapping[str, str]) -> str:
    """This machine's id, "" where nobody says."""
    return _metadata_entry_or_empty(environ, INSTANCE_ID)


def _metadata_entry_or_empty(environ: Mapping[str, str], path: str) -> str:
    base, headers, reason = _metadata_base_url_and_token_headers(environ)
    response = None
    if not reason:
        response = send_http_request_or_status_zero("GET", base + path, headers, proxies=False)
    if response and response.status == 200:
        return response.body.decode("ascii", "replace").strip()
    return ""


def _metadata_base_url_and_token_headers(environ: Mapping[str, str]) -> Tuple[str, Dict[str, str], str]:
    """(where the service is, the headers for it, why there is none)."""
    base = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", METADATA).rstrip("/")
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return base, {}, "AWS_EC2_METADATA_DISABLED=true"
    token = send_http_request_or_status_zero(
        "PUT", f"{base}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}, b"", proxies=False
    )
    if token.status != 200:
        reason = f"the metadata service at {base} returned no token: {_failure_text(token.status, token.body)}"
        return base, {}, reason
    return base, {"X-aws-ec2-metadata-token": token.body.decode("ascii", "replace").strip()}, ""


def _expiry_or_zero(document: Mapping[str, str]) -> float:
    """When they expire; 0 when that is not said as AWS does."""
    try:
        return float(calendar.timegm(time.strptime(document["Expiration"], "%Y-%m-%dT%H:%M:%SZ")))
    except (KeyError, TypeError, ValueError):
        return 0.0


def _failure_text(status: int, body: bytes) -> str:
    if status:
        return f"status {status}"
    return body.decode(errors="replace")
