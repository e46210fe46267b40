"""The calls against moto: what AWS's shapes allow, what all pages hold, what is not there."""

from __future__ import annotations

import hashlib
from typing import Iterator

import boto3
import pytest
from moto import mock_aws

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.aws.sagemaker import SageMaker
from hyperpod_kit.errors import AwsError, UnreadableAnswer

ROLE = "arn:aws:iam::111122223333:role/R"


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        yield


def test_objects_are_listed_over_all_pages_and_have_their_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperpod_kit.aws.s3.PAGE", 10)
    boto3.client("s3", "us-east-1").create_bucket(Bucket="sagemaker-x")
    bucket = Bucket("sagemaker-x", "us-east-1")
    for number in range(25):
        bucket.put(f"p/{number}", b"x" * (number % 7))
    bucket.put("q/other", b"")
    sizes = bucket.sizes_by_relative_key("p/")
    assert len(sizes) == 25 and sizes["8"] == 1
    assert bucket.sha256("p/8") == hashlib.sha256(b"x").hexdigest()
    assert bucket.sha256("p/nothing") is None


def test_an_object_without_a_stored_checksum_is_read() -> None:
    s3 = boto3.client("s3", "us-east-1")
    s3.create_bucket(Bucket="sagemaker-x")
    s3.put_object(Bucket="sagemaker-x", Key="plain", Body=b"words")
    assert Bucket("sagemaker-x", "us-east-1").sha256("plain") == hashlib.sha256(b"words").hexdigest()


def test_a_missing_bucket_is_an_error_not_an_empty_one() -> None:
    with pytest.raises(AwsError, match="NoSuchBucket"):
        Bucket("sagemaker-nothing", "us-east-1").sizes_by_relative_key("p/")


def test_cluster_calls() -> None:
    sagemaker = SageMaker("us-east-1")
    # moto cannot make nodes without ThreadsPerCore, which AWS does not ask for.
    group = {
        "InstanceGroupName": "g",
        "InstanceType": "ml.c5.xlarge",
        "InstanceCount": 3,
        "ExecutionRole": ROLE,
        "ThreadsPerCore": 1,
        "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-x/y/", "OnCreate": "on_create.sh"},
    }
    arn = sagemaker.create_cluster({"ClusterName": "c", "InstanceGroups": [group]})
    assert arn.startswith("arn:aws:sagemaker:us-east-1:")
    assert sagemaker.describe_cluster("c")["ClusterName"] == "c"
    nodes = sagemaker.list_nodes("c")
    assert [node["InstanceGroupName"] for node in nodes] == ["g"] * 3
    assert sagemaker.describe_node("c", nodes[0]["InstanceId"])["InstanceType"] == "ml.c5.xlarge"
    sagemaker.delete_cluster("c")
    with pytest.raises(AwsError):
        sagemaker.describe_cluster("c")


class EndlessBody:
    """Gives a piece whenever it is asked, and never ends."""

    def read(self, size: int) -> bytes:
        return b"x"


def test_a_body_that_has_not_ended_in_time_is_no_whole_body() -> None:
    """The reader, which stops at its deadline, may come back before the one who waits for it has given it up."""
    for _ in range(20):
        with pytest.raises(UnreadableAnswer, match="did not arrive within"):
            responses.read_bounded_body(EndlessBody(), "GetObject", largest=1 << 40, seconds=0.01)
