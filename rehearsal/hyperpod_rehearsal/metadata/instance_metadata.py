"""What a node's metadata service says: IMDSv2 with the part that scripts on HyperPod nodes ask for. Pure.

A token is asked for first, as instances of today demand; version 1 is 401. What is not in `entries` is 404.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, Mapping, Tuple

ADDRESS = "169.254.169.254"
MAX_TOKEN_TTL = 21600
"""Seconds that a token may live; a whole number from 1 on, else 400."""
TOKEN, TTL = "x-aws-ec2-metadata-token", "x-aws-ec2-metadata-token-ttl-seconds"
MAX_TOKENS = 1000
"""Tokens that are good at a time: a program that asks for ever makes the oldest ones bad, nothing more."""
CREDENTIALS_TTL = 6 * 3600

HttpResponse = Tuple[int, Dict[str, str], bytes]


@dataclass(frozen=True)
class InstanceIdentity:
    """One instance. `type`: as HyperPod writes it; `role`: ARN of its execution role, or "" for none."""

    id: str
    type: str
    ip: str
    host: str
    region: str
    account: str
    role: str
    access_key: str
    secret_key: str
    token: str = ""
    is_spot: bool = False


def metadata_entries(instance: InstanceIdentity, now: float, spot_end: float = 0.0) -> Dict[str, str]:
    """Path below /latest -> content. InstanceIdentity types are EC2's, without `ml.`. `spot_end`: when EC2 takes the
    instance back, Unix seconds, 0 where it has not said so."""
    zone = f"{instance.region}a"
    if instance.type.startswith("ml."):
        ec2_type = instance.type[3:]
    else:
        ec2_type = instance.type
    name = f"{instance.host}.ec2.internal"
    contents = {
        "meta-data/hostname": name,
        "meta-data/local-hostname": name,
        "meta-data/local-ipv4": instance.ip,
        "meta-data/instance-id": instance.id,
        "meta-data/instance-life-cycle": "spot" if instance.is_spot else "on-demand",
        "meta-data/instance-type": ec2_type,
        "meta-data/placement/availability-zone": zone,
        "meta-data/placement/availability-zone-id": "use1-az1",
        "meta-data/placement/region": instance.region,
        "meta-data/services/domain": "amazonaws.com",
        "meta-data/services/partition": "aws",
        "dynamic/instance-identity/document": json.dumps(
            {
                "accountId": instance.account,
                "availabilityZone": zone,
                "instanceId": instance.id,
                "instanceType": ec2_type,
                "privateIp": instance.ip,
                "region": instance.region,
            },
            indent=2,
        ),
    }
    if spot_end:
        at = _format_timestamp(spot_end)
        contents["meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": at})
        contents["meta-data/spot/termination-time"] = at
    if instance.role:
        role = instance.role.rpartition("/")[2]
        contents[f"meta-data/iam/security-credentials/{role}"] = json.dumps(
            {
                "Code": "Success",
                "LastUpdated": _format_timestamp(now),
                "Type": "AWS-HMAC",
                "AccessKeyId": instance.access_key,
                "SecretAccessKey": instance.secret_key,
                "Token": instance.token,
                "Expiration": _format_timestamp(now + CREDENTIALS_TTL),
            },
            indent=2,
        )
    return contents


def _format_timestamp(unix_time: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_time))


@dataclass
class Metadata:
    """The service of one instance. Methods may be called in any thread."""

    instance: InstanceIdentity
    clock: Callable[[], float] = time.time
    spot_end: float = 0.0
    _tokens: Dict[str, float] = field(default_factory=dict)

    def respond(self, method: str, path: str, headers: Mapping[str, str]) -> HttpResponse:
        """Status, headers and body for one request; header names in small letters."""
        path = path.partition("?")[0]
        if method == "PUT" and path.rstrip("/") == "/latest/api/token":
            return self._issue_token(headers)
        if method not in ("GET", "HEAD"):
            return _text_response(405, "Method Not Allowed")
        if self._tokens.get(headers.get(TOKEN, ""), 0.0) <= self.clock():
            return _text_response(401, "Unauthorized")
        return self._respond_to_read(path)

    def _issue_token(self, headers: Mapping[str, str]) -> HttpResponse:
        requested_ttl = headers.get(TTL, "")
        if "x-forwarded-for" in headers:
            return _text_response(403, "Forbidden")
        if not (requested_ttl.isascii() and requested_ttl.isdigit() and 1 <= int(requested_ttl) <= MAX_TOKEN_TTL):
            return _text_response(400, "Bad Request")
        now, token = self.clock(), secrets.token_urlsafe(40)
        alive = [(old, until) for old, until in self._tokens.items() if until > now]
        self._tokens = dict([*alive[1 - MAX_TOKENS :], (token, now + int(requested_ttl))])
        status, more, body = _text_response(200, token)
        return status, {**more, TTL: requested_ttl}, body

    def _respond_to_read(self, path: str) -> HttpResponse:
        if not path.startswith("/latest/"):
            return _text_response(404, "Not Found")
        requested, contents = (
            path[len("/latest/") :].rstrip("/"),
            metadata_entries(self.instance, self.clock(), self.spot_end),
        )
        if requested in contents:
            return _text_response(200, contents[requested])
        below = ""
        if requested:
            below = f"{requested}/"
        names = {name[len(below) :] for name in contents if name.startswith(below)}
        listed = sorted({first + more for first, more, _ in (name.partition("/") for name in names)})
        if listed:
            return _text_response(200, "\n".join(listed))
        return _text_response(404, "Not Found")


def _text_response(status: int, text: str) -> HttpResponse:
    return status, {"Content-Type": "text/plain"}, text.encode()
