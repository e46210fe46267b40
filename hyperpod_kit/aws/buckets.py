"""Whether a bucket is there, where, and whether anything is in it: read-only calls; errors are ours."""

from __future__ import annotations

from typing import NamedTuple, Optional

from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client

ZONAL = "--x-s3"
"""End of the names of directory buckets (S3 Express One Zone), `data--use1-az4--x-s3`."""


class BucketHead(NamedTuple):
    """What HeadBucket said. `allowed`: False when the bucket is there and the caller may not list it."""

    exists: bool
    allowed: bool
    region: Optional[str]


class Buckets:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("s3", region, connections=connections)

    def head(self, name: str) -> BucketHead:
        """HeadBucket. Its answer names the region even where it is a refusal or a redirection."""
        from botocore.exceptions import ClientError

        with translate_aws_errors("HeadBucket", f"s3://{name}"):
            try:
                response = self._client.head_bucket(Bucket=name)
            except ClientError as err:
                metadata = err.response.get("ResponseMetadata", {})
                status = metadata.get("HTTPStatusCode")
                region = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region")
                if status == 404:
                    return BucketHead(False, False, None)
                if status in (301, 307, 403) and region:
                    return BucketHead(True, status != 403, region)
                raise
        region = response.get("BucketRegion") or response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
        return BucketHead(True, True, region)

    def is_empty(self, name: str, prefix: str) -> bool:
        """Whether no object's key begins with `prefix`."""
        with translate_aws_errors("ListObjectsV2", f"s3://{name}/{prefix}"):
            return not self._client.list_objects_v2(Bucket=name, Prefix=prefix, MaxKeys=1).get("KeyCount", 0)


def directory_bucket_zone(name: str) -> Optional[str]:
    """Return the availability zone id in the name of a directory bucket, None for other buckets."""
    if name.endswith(ZONAL):
        return name[: -len(ZONAL)].rpartition("--")[2]
    return None
