"""A prefix of a bucket that nobody can put into; moto evaluates the policy as S3 does."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional

import boto3
import pytest
from botocore.exceptions import ClientError

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.storage.quota import s3_stop
from hyperpod_kit.storage.quota.limits import QuotaError

BUCKET = "a-bucket"
FOREIGN = {
    "Sid": "Mine",
    "Effect": "Deny",
    "Principal": "*",
    "Action": "s3:PutObject",
    "Resource": f"arn:aws:s3:::{BUCKET}/locked/*",
}


def policy() -> Optional[Dict[str, Any]]:
    try:
        found: Dict[str, Any] = json.loads(boto3.client("s3", "us-east-1").get_bucket_policy(Bucket=BUCKET)["Policy"])
        return found
    except ClientError:
        return None


def test_putting_is_denied_and_deleting_is_not(aws: None) -> None:
    s3 = boto3.client("s3", "us-east-1")
    s3.create_bucket(Bucket=BUCKET)
    for key in ("runs/alice/old", "runs/alice2/x"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"1")
    words = ["storage", "quota", "stop", f"s3://{BUCKET}/runs/alice"]
    assert run_command_line([*words, "--dry-run"]) == 0 and policy() is None
    for _ in range(2):
        assert run_command_line(words) == 0
    with pytest.raises(ClientError, match=r"403|AccessDenied|Forbidden"):
        s3.put_object(Bucket=BUCKET, Key="runs/alice/new", Body=b"1")
    s3.put_object(Bucket=BUCKET, Key="runs/alice2/new", Body=b"1")
    s3.delete_object(Bucket=BUCKET, Key="runs/alice/old")
    assert run_command_line(["storage", "quota", "resume", f"s3://{BUCKET}/runs/alice/"]) == 0 and policy() is None
    s3.put_object(Bucket=BUCKET, Key="runs/alice/new", Body=b"1")


def test_statements_of_others_stay_as_they_are(aws: None) -> None:
    s3 = boto3.client("s3", "us-east-1")
    s3.create_bucket(Bucket=BUCKET)
    before = {"Version": "2012-10-17", "Id": "x", "Statement": [FOREIGN]}
    s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(before))
    assert run_command_line(["storage", "quota", "stop", f"s3://{BUCKET}/a/"]) == 0
    now = policy()
    assert now is not None and now["Statement"][0] == FOREIGN and len(now["Statement"]) == 2
    assert run_command_line(["storage", "quota", "resume", f"s3://{BUCKET}/a/"]) == 0 and policy() == before


@pytest.mark.parametrize("place", ["s3://", "s3://b", "s3://b/", "s3://b/*", "s3://b/a?/", "s3://b/${aws:username}/"])
def test_what_is_no_prefix(place: str) -> None:
    with pytest.raises(QuotaError, match="is not a prefix"):
        s3_stop.split_prefix_url(place)


def test_words_that_do_not_go_together() -> None:
    assert run_command_line(["storage", "quota", "stop", "fs-0123456789abcdef0"]) == 2
    assert run_command_line(["storage", "quota", "stop", "s3://b/a/", "fsap-0123456789abcdef0"]) == 2


class BusyBucket:
    """A bucket whose policy another admin puts in between, `times` times."""

    def __init__(self, times: int) -> None:
        self.now: Dict[str, Any] = {"Version": "2012-10-17", "Statement": [FOREIGN]}
        self.times = times

    def arn(self, bucket: str, key: str) -> str:
        return f"arn:aws:s3:::{bucket}/{key}"

    def policy(self, bucket: str) -> Dict[str, Any]:
        return self.now

    def put_policy(self, bucket: str, policy: str) -> None:
        self.times -= 1
        self.now = {**self.now, "Id": str(self.times)} if self.times >= 0 else json.loads(policy)

    def delete_policy(self, bucket: str) -> None:
        raise AssertionError("it has statements of others")


def test_a_change_that_another_has_overwritten_is_made_again_on_his() -> None:
    busy = BusyBucket(2)
    assert s3_stop.update_stopped_prefixes(busy, BUCKET, stop=["a/"]) == [f"arn:aws:s3:::{BUCKET}/a/*"]
    assert busy.now["Id"] == "0" and busy.now["Statement"][0] == FOREIGN
    with pytest.raises(QuotaError, match="being changed by others"):
        s3_stop.update_stopped_prefixes(BusyBucket(9), BUCKET, stop=["a/"])
    with pytest.raises(QuotaError, match="stops 900 prefixes"):
        s3_stop.update_stopped_prefixes(BusyBucket(0), BUCKET, stop=[f"users/user-{n}/" for n in range(900)])
