"""Endpoint, region and credentials from where the AWS tools look for them."""

from __future__ import annotations

import configparser
import os
from typing import Mapping, NamedTuple, Optional

from hyperpod_rehearsal.standins.mountpoint_s3.sigv4 import AccessKey


class S3Settings(NamedTuple):
    """How to reach S3. credentials: None when none were found."""

    endpoint: str
    region: str
    credentials: Optional[AccessKey]


def load_settings(
    environ: Mapping[str, str],
    profile: Optional[str] = None,
    endpoint: Optional[str] = None,
    region: Optional[str] = None,
) -> S3Settings:
    """Read endpoint, region and credentials from the environment and ~/.aws.

    Options win over the environment, the environment over ~/.aws. An empty endpoint means that none is set.
    """
    # A colon is part of a profile's values, and AWS's files know no interpolation.
    config = configparser.RawConfigParser(delimiters=("=",))
    secrets = configparser.RawConfigParser(delimiters=("=",))
    config.read(environ.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config"))
    secrets.read(environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials"))
    name = profile or environ.get("AWS_PROFILE") or "default"
    if name == "default":
        section = name
    else:
        section = f"profile {name}"

    def configured(option: str) -> Optional[str]:
        return secrets.get(name, option, fallback=None) or config.get(section, option, fallback=None)

    credentials = None
    for access, secret, token in (
        (environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY"), environ.get("AWS_SESSION_TOKEN")),
        (configured("aws_access_key_id"), configured("aws_secret_access_key"), configured("aws_session_token")),
    ):
        if credentials is None and access and secret:
            credentials = AccessKey(access, secret, token)
    return S3Settings(
        endpoint
        or environ.get("AWS_ENDPOINT_URL_S3")
        or environ.get("AWS_ENDPOINT_URL")
        or configured("endpoint_url")
        or "",
        region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or configured("region") or "us-east-1",
        credentials,
    )
