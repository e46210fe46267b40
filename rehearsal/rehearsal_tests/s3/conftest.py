"""A store on a temporary directory, and the endpoint in front of it on loopback."""

from __future__ import annotations

import boto3
import pytest
from botocore.config import Config

from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.aws import serving

BUCKET = "sagemaker-test"


@pytest.fixture
def store(tmp_path):
    made = StoredBuckets(tmp_path / "s3")
    made.create_bucket(BUCKET)
    return made


@pytest.fixture
def endpoint(store):
    with serving(store, keys={"test": Key("test", "secret")}) as server:
        yield server


@pytest.fixture
def s3(endpoint):
    return boto3.client(
        "s3",
        endpoint_url=endpoint.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
