"""The policy of a bucket; errors are ours."""

from __future__ import annotations

import json
from typing import Any, Optional

from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError


class BucketPolicies:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None) -> None:
        self._client = client("s3", region)

    def arn(self, bucket: str, key: str) -> str:
        """Make the ARN of objects, in the partition of the region."""
        return f"arn:{self._client.meta.partition}:s3:::{bucket}/{key}"

    def policy(self, bucket: str) -> Optional[dict[str, Any]]:
        """Return the policy of the bucket; None where there is none, which is the usual case."""
        try:
            with translate_aws_errors("GetBucketPolicy", f"s3://{bucket}"):
                return dict(json.loads(self._client.get_bucket_policy(Bucket=bucket)["Policy"]))
        except AwsError as err:
            if err.code == "NoSuchBucketPolicy":
                return None
            raise

    def put_policy(self, bucket: str, policy: str) -> None:
        """Replace the policy of the bucket."""
        with translate_aws_errors("PutBucketPolicy", f"s3://{bucket}"):
            self._client.put_bucket_policy(Bucket=bucket, Policy=policy)

    def delete_policy(self, bucket: str) -> None:
        """Delete the policy of the bucket."""
        with translate_aws_errors("DeleteBucketPolicy", f"s3://{bucket}"):
            self._client.delete_bucket_policy(Bucket=bucket)
