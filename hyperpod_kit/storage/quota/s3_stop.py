"""S3 has no limit of a prefix. What it has is a policy: below a prefix in our one statement nobody can put an object.

Deleting stays allowed, so that who is stopped can make room; parts of uploads are puts too.
"""

from __future__ import annotations

import json
from typing import Any, Iterable, Protocol

from hyperpod_kit.storage.quota.efs_stop import MAX_ATTEMPTS, SID
from hyperpod_kit.storage.quota.limits import QuotaError

MAX_POLICY = 20_480
"""Bytes of a bucket's policy, which AWS allows."""


class BucketPolicyOwner(Protocol):
    """The calls of aws/bucket_policy.py that are needed."""

    def arn(self, bucket: str, key: str) -> str: ...

    def policy(self, bucket: str) -> dict[str, Any] | None: ...

    def put_policy(self, bucket: str, policy: str) -> None: ...

    def delete_policy(self, bucket: str) -> None: ...


def split_prefix_url(url: str) -> tuple[str, str]:
    """Split `s3://bucket/prefix/` into (bucket, prefix).

    Raises QuotaError for a whole bucket, and for half of a name.
    """
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket or not prefix or any(sign in prefix for sign in "*?$"):
        raise QuotaError(f"{url} is not a prefix of a bucket", hint="s3://BUCKET/PREFIX/, without * ? $")
    # Without it `alice` would stop `alice2` too.
    return bucket, prefix.rstrip("/") + "/"


def prefix_arns_denied_writing(policy: dict[str, Any] | None) -> list[str]:
    """List the ARNs, each with `*` at its end, below which nothing can be put."""
    for statement in (policy or {}).get("Statement", []):
        if statement.get("Sid") == SID:
            arns = statement["Resource"]
            return [arns] if isinstance(arns, str) else list(arns)
    return []


def policy_denying_writes_below_prefixes(policy: dict[str, Any] | None, arns: Iterable[str]) -> dict[str, Any]:
    """Make the policy with exactly these stopped; statements of others stay as they are, in their places."""
    names = sorted(set(arns))
    body = dict(policy or {"Version": "2012-10-17"})
    statements = body.get("Statement", [])
    if isinstance(statements, dict):
        statements = [statements]
    statements = [statement for statement in statements if statement.get("Sid") != SID]
    if names:
        statements.append({"Sid": SID, "Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": names})
    return {**body, "Statement": statements}


def update_stopped_prefixes(
    buckets: BucketPolicyOwner, bucket: str, *, stop: Iterable[str] = (), resume: Iterable[str] = ()
) -> list[str]:
    """Stop and release prefixes; returns the ARNs that are stopped then. Nothing is put where nothing changes.

    It is read again after it was put, as in efs_stop.py. Raises QuotaError, AwsError, Unreachable.
    """
    add = {buckets.arn(bucket, f"{prefix}*") for prefix in stop}
    remove = {buckets.arn(bucket, f"{prefix}*") for prefix in resume}
    for _ in range(MAX_ATTEMPTS):
        policy = buckets.policy(bucket)
        desired = sorted((set(prefix_arns_denied_writing(policy)) | add) - remove)
        if desired == sorted(prefix_arns_denied_writing(policy)):
            return desired
        changed_policy = policy_denying_writes_below_prefixes(policy, desired)
        text = json.dumps(changed_policy, separators=(",", ":"))
        if len(text.encode()) > MAX_POLICY:
            raise QuotaError(
                f"s3://{bucket}: a policy that stops {len(desired)} prefixes has {len(text.encode()):,} bytes, "
                f"and AWS accepts at most {MAX_POLICY:,}",
                hint="allow some of them to write again: hyperpod-kit storage quota resume",
            )
        if changed_policy["Statement"]:
            buckets.put_policy(bucket, text)
        else:
            buckets.delete_policy(bucket)
        if sorted(prefix_arns_denied_writing(buckets.policy(bucket))) == desired:
            return desired
    raise QuotaError(f"s3://{bucket}: its policy is being changed by others; ours was overwritten {MAX_ATTEMPTS} times")
