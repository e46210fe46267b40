"""The client for a bucket: the kit's own; or boto3's, where it is installed and something is asked for that the own one
does not do. What AWS's programs can be told is more than a client of one file can follow.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any, Mapping
from urllib.request import getproxies_environment

from hyperpod_kit.s3.client import S3HttpClient
from hyperpod_kit.s3.errors import S3NotConfigured
from hyperpod_kit.signing import chain

_BOTO3_VARIABLES = (
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_PROFILE",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_IMDS_USE_IPV6",
    "AWS_METADATA_SERVICE_NUM_ATTEMPTS",
    "AWS_METADATA_SERVICE_TIMEOUT",
    "AWS_SECURITY_TOKEN",
    "AWS_USE_DUALSTACK_ENDPOINT",
    "AWS_USE_FIPS_ENDPOINT",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "BOTO_CONFIG",
)
"""Variables with which something is asked for that boto3 alone does."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*", re.IGNORECASE)
_DIRECTORY_BUCKET = "--x-s3"
"""How a bucket of S3 Express One Zone ends, whose requests are signed in another way."""


def connect(url: str, environ: Mapping[str, str]) -> Any:
    """Return a client for the bucket of `s3://bucket/…`. Raise S3NotConfigured."""
    if importlib.util.find_spec("boto3") is None:
        return S3HttpClient(environ)
    if _is_boto3_needed(url, environ):
        return _boto3_client(url)
    try:
        client = S3HttpClient(environ)
        client.require_credentials()
    except (S3NotConfigured, PermissionError):
        return _boto3_client(url)
    return client


def _is_boto3_needed(url: str, environ: Mapping[str, str]) -> bool:
    """Return whether the bucket, a variable, a proxy or the profile is of a kind that boto3 alone follows."""
    bucket = url[len("s3://") :].partition("/")[0]
    if not _BUCKET.fullmatch(bucket) or bucket.endswith(_DIRECTORY_BUCKET):
        return True
    if any(environ.get(name) for name in _BOTO3_VARIABLES) or getproxies_environment().keys() - {"no"}:
        return True
    profile = chain.read_profile(environ)
    return bool(profile.other_keys) or (bool(environ.get("AWS_PROFILE")) and profile.is_empty)


def _boto3_client(url: str) -> Any:
    """Return boto3's client. Raise S3NotConfigured."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        retries={"mode": "standard", "total_max_attempts": 5},
        max_pool_connections=32,
        connect_timeout=10,
        read_timeout=60,
        tcp_keepalive=True,
    )
    try:
        # Not the session that boto3 shares: it is not safe for threads, and keeps the credentials it has found first.
        return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as err:
        raise S3NotConfigured(f"{url} cannot be reached: {err}") from None
