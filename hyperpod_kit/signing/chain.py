"""Credentials, region and endpoint where AWS's own programs look for them: the environment, the files of ~/.aws, the
node's role. What needs more than reading (SSO, a role to assume, a process to ask) is boto3's business.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import configparser
import os
import threading
import time
from typing import Dict, Mapping, NamedTuple, Optional, Tuple

from hyperpod_kit.signing import role
from hyperpod_kit.signing.request import Credentials

EARLY = 300.0
"""Seconds before their end at which credentials are asked for anew: AWS has newer ones by then."""

AGAIN = 900.0
"""Seconds for which credentials are used that do not say when they end: a file may be written anew."""

PAUSE = 15.0
"""Seconds after which a service that had no newer credentials is asked again, while the old ones have not ended."""


_PROFILE_KEYS = (
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "endpoint_url",
    "output",
    "region",
)
"""Keys of a profile that are read here or mean nothing to a request, as do those that begin with `cli_`."""


class AwsFiles(NamedTuple):
    """What the files of ~/.aws say in one profile; empty what they do not. `other_keys`: those that are not read
    here, a role to assume or a sign-on among them."""

    credentials: Optional[Credentials]
    region: str
    endpoint: str
    other_keys: Tuple[str, ...]
    is_empty: bool


def read_profile(environ: Mapping[str, str]) -> AwsFiles:
    """Read the profile that AWS_PROFILE names, or `default`. A file that cannot be read counts as empty."""
    name = environ.get("AWS_PROFILE") or "default"
    section = f"profile {name}"
    if name == "default":
        section = "default"
    config = _read_ini_section_or_empty(environ.get("AWS_CONFIG_FILE"), "config", section)
    profile = {**config, **_read_ini_section_or_empty(environ.get("AWS_SHARED_CREDENTIALS_FILE"), "credentials", name)}
    credentials = None
    if profile.get("aws_access_key_id") and profile.get("aws_secret_access_key"):
        credentials = Credentials(
            profile["aws_access_key_id"], profile["aws_secret_access_key"], profile.get("aws_session_token", "")
        )
    other_keys = tuple(key for key in profile if key not in _PROFILE_KEYS and not key.startswith("cli_"))
    return AwsFiles(
        credentials, profile.get("region", ""), profile.get("endpoint_url", ""), other_keys, is_empty=not profile
    )


def _read_ini_section_or_empty(path: Optional[str], name: str, section: str) -> Dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(os.path.expanduser(path or os.path.join("~", ".aws", name)))
        if parser.has_section(section):
            return dict(parser.items(section))
        return {}
    except (configparser.Error, ValueError, OSError):
        return {}


def find_region_or_empty(environ: Mapping[str, str]) -> str:
    """The region, "" where nobody says."""
    named = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or read_profile(environ).region
    return named or role.node_region_or_empty(environ)


def configured_endpoint_or_empty(environ: Mapping[str, str], service: str) -> str:
    """Where a service is when it is not where AWS has it; else "". `service` in capitals, as in the variable's name."""
    named = (
        environ.get(f"AWS_ENDPOINT_URL_{service}") or environ.get("AWS_ENDPOINT_URL") or read_profile(environ).endpoint
    )
    return named.rstrip("/")


class CredentialChain:
    """The credentials of a process, asked for anew before they end. Safe for threads."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._credentials: Optional[Credentials] = None
        self._until = 0.0

    def get(self) -> Credentials:
        """Return the credentials, loaded again before they end; where that fails, those that have not ended yet.
        Raises PermissionError, which names the places looked at."""
        with self._lock:
            now = time.time()
            if self._credentials is None or now >= self._until:
                newer, reason = self._load_credentials_or_reason()
                if newer is not None:
                    self._credentials = newer
                    self._until = newer.expires - EARLY if newer.expires else now + AGAIN
                elif self._credentials is not None and now < self._credentials.expires:
                    self._until = now + PAUSE
                else:
                    self._credentials = None
                    raise PermissionError(reason)
            return self._credentials

    def discard_cached_credentials(self) -> None:
        """Discard the cached credentials: the service does not accept them any more."""
        with self._lock:
            self._credentials = None

    def _load_credentials_or_reason(self) -> Tuple[Optional[Credentials], str]:
        credentials = role.environment_credentials(self._environ) or read_profile(self._environ).credentials
        if credentials:
            return credentials, ""
        credentials, reason = role.node_role_credentials(self._environ)
        return credentials, f"no AWS credentials in the environment or in ~/.aws, and {reason}"
