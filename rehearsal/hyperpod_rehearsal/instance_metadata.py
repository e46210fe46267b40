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
LONGEST = 21600
"""Seconds that a token may live; a whole number from 1 on, else 400."""
TOKEN, TTL = "x-aws-ec2-metadata-token", "x-aws-ec2-metadata-token-ttl-seconds"
MOST_TOKENS = 1000
"""Tokens that are good at a time: a program that asks for ever makes the oldest ones bad, nothing more."""
CREDENTIALS_LAST = 6 * 3600

Answer = Tuple[int, Dict[str, str], bytes]


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


def entries(instance: InstanceIdentity, now: float) -> Dict[str, str]:
    """Path below /latest -> content. InstanceIdentity types are EC2's, without `ml.`."""
    zone = f"{instance.region}a"
    ec2_type = instance.type[3:] if instance.type.startswith("ml.") else instance.type
    name = f"{instance.host}.ec2.internal"
    found = {
        "meta-data/hostname": name,
        "meta-data/local-hostname": name,
        "meta-data/local-ipv4": instance.ip,
        "meta-data/instance-id": instance.id,
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
    if instance.role:
        role = instance.role.rpartition("/")[2]
        found[f"meta-data/iam/security-credentials/{role}"] = json.dumps(
            {
                "Code": "Success",
                "LastUpdated": _stamp(now),
                "Type": "AWS-HMAC",
                "AccessKeyId": instance.access_key,
                "SecretAccessKey": instance.secret_key,
                "Token": instance.token,
                "Expiration": _stamp(now + CREDENTIALS_LAST),
            },
            indent=2,
        )
    return found


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


@dataclass
class Metadata:
    """The service of one instance. Methods may be called in any thread."""

    instance: InstanceIdentity
    clock: Callable[[], float] = time.time
    _tokens: Dict[str, float] = field(default_factory=dict)

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        """Status, headers and body for one request; header names in small letters."""
        path = path.partition("?")[0]
        if method == "PUT" and path.rstrip("/") == "/latest/api/token":
            return self._token(headers)
        if method not in ("GET", "HEAD"):
            return _plain(405, "Method Not Allowed")
        if self._tokens.get(headers.get(TOKEN, ""), 0.0) <= self.clock():
            return _plain(401, "Unauthorized")
        return self._read(path)

    def _token(self, headers: Mapping[str, str]) -> Answer:
        wanted = headers.get(TTL, "")
        if "x-forwarded-for" in headers:
            return _plain(403, "Forbidden")
        if not (wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= LONGEST):
            return _plain(400, "Bad Request")
        now, token = self.clock(), secrets.token_urlsafe(40)
        alive = [(old, until) for old, until in self._tokens.items() if until > now]
        self._tokens = dict([*alive[1 - MOST_TOKENS :], (token, now + int(wanted))])
        status, more, body = _plain(200, token)
        return status, {**more, TTL: wanted}, body

    def _read(self, path: str) -> Answer:
        if not path.startswith("/latest/"):
            return _plain(404, "Not Found")
        wanted, known = path[len("/latest/") :].rstrip("/"), entries(self.instance, self.clock())
        if wanted in known:
            return _plain(200, known[wanted])
        below = f"{wanted}/" if wanted else ""
        names = {name[len(below) :] for name in known if name.startswith(below)}
        listed = sorted({first + more for first, more, _ in (name.partition("/") for name in names)})
        return _plain(200, "\n".join(listed)) if listed else _plain(404, "Not Found")


def _plain(status: int, text: str) -> Answer:
    return status, {"Content-Type": "text/plain"}, text.encode()
