from __future__ import annotations

import boto3
import pytest
from botocore.config import Config

from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.store import StoredBuckets
from rehearsal_tests.sagemaker.memory_control_plane import MemoryControlPlane
from tests.support.aws import serving


@pytest.fixture
def control():
    return MemoryControlPlane()


@pytest.fixture
def endpoint(tmp_path, control):
    with serving(StoredBuckets(tmp_path / "s3"), control, keys={"test": Key("test", "secret")}) as server:
        yield server


@pytest.fixture
def client(endpoint):
    """A client that validates nothing itself, so that the endpoint has to."""
    return boto3.client(
        "sagemaker",
        endpoint_url=endpoint.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="secret",
        config=Config(parameter_validation=False, retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def request_body():
    """A CreateCluster request that is right."""

    def group(name, kind, count):
        return {
            "InstanceGroupName": name,
            "InstanceType": kind,
            "InstanceCount": count,
            "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-x/y/", "OnCreate": "on_create.sh"},
            "ExecutionRole": "arn:aws:iam::111122223333:role/HyperPodKitDemo",
            "ThreadsPerCore": 1,
        }

    return {
        "ClusterName": "demo",
        "NodeRecovery": "Automatic",
        "InstanceGroups": [group("controller-machine", "ml.c5.large", 1), group("worker-group", "ml.g5.xlarge", 24)],
        "VpcConfig": {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": ["subnet-0123456789abcdef0"]},
        "Tags": [{"Key": "team", "Value": "größe 1"}],
    }
