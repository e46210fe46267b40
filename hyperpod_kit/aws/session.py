"""boto3 clients: how long they wait, how often they retry, how they address buckets."""

from __future__ import annotations

import os
from typing import Any, Optional

from hyperpod_kit.aws import responses, shapes
from hyperpod_kit.errors import UsageError

ATTEMPTS = 4
"""How often botocore asks before a call counts as unanswered; AWS_MAX_ATTEMPTS says otherwise."""


def client(service: str, region: Optional[str], *, connections: int = 10) -> Any:
    """Create a boto3 client with our timeouts, retries and response checks.

    The endpoint comes from AWS_ENDPOINT_URL when that is set, credentials from boto3's usual chain.
    `connections`: how many threads will use it at once. Raises Unreachable when there is no region or
    profile, UsageError when the endpoint is no URL.
    """
    import boto3
    import botocore.session
    from botocore.config import Config

    from hyperpod_kit.aws.errors import translate_aws_errors

    options: dict[str, Any] = {
        "connect_timeout": 5,
        "read_timeout": responses.SECONDS,
        "max_pool_connections": connections,
        "retries": {"mode": "standard"},
    }
    if "AWS_MAX_ATTEMPTS" not in os.environ:
        options["retries"]["total_max_attempts"] = ATTEMPTS
    if os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}") or os.environ.get("AWS_ENDPOINT_URL"):
        # Use path-style URLs with a custom endpoint, which has no DNS name per bucket.
        options["s3"] = {"addressing_style": "path"}
    with translate_aws_errors(f"open {service}"):
        core = botocore.session.get_session()
        core.register_component("data_loader", shapes.service_model_loader(""))
        session = boto3.session.Session(botocore_session=core, region_name=region)
        try:
            return responses.install_response_limits_and_checks(session.client(service, config=Config(**options)))
        except ValueError as err:
            raise UsageError(
                f"open {service}: {err}", hint="AWS_ENDPOINT_URL is written like https://HOST, or not set at all"
            ) from err
