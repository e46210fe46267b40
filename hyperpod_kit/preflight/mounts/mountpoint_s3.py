"""Mountpoint for S3: the bucket, and what the role must be allowed there."""

from __future__ import annotations

from typing import Iterator, Optional

from hyperpod_kit.config.mounts.mountpoint_s3 import KIND as FORM
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.preflight.mounts.inquiry import BucketOf, MountInquiry
from hyperpod_kit.preflight.need import Account, Carried, Need, sid_of
from hyperpod_kit.preflight.placement import RoleOf


def needs(carried: Carried, account: Account, role: RoleOf) -> Iterator[Need]:
    for mount, at in carried:
        if mount.endpoint_url is not None:
            continue
        bucket = f"arn:{account.partition}:s3:::{mount.bucket}"
        name, why = sid_of(mount.name), f"mount `{mount.name}`"
        if mount.bucket.endswith("--x-s3"):
            arn = account.arn("s3express", f"bucket/{mount.bucket}", mount.region)
            yield Need(f"Mount{name}", why, at, ("s3express:CreateSession",), (arn,))
            continue
        yield Need(f"List{name}", why, at, ("s3:ListBucket",), (bucket,))
        actions = ["s3:GetObject"]
        if not mount.read_only:
            actions += ["s3:PutObject", "s3:AbortMultipartUpload"]
            if mount.allow_delete:
                actions.append("s3:DeleteObject")
        yield Need(f"Mount{name}", why, at, tuple(actions), (f"{bucket}/{mount.prefix}*",))
        if not mount.read_only and mount.sse_kms_key_id:
            yield _key(mount.sse_kms_key_id, f"Key{name}", why, at, account)


def _key(key: str, sid: str, why: str, at: str, account: Account) -> Need:
    """The key that new objects are encrypted with: an ARN, an id, or an alias, which no policy's resource can name."""
    at, actions = f"{at}.sse_kms_key_id", ("kms:GenerateDataKey", "kms:Decrypt")
    if not key.startswith("alias/"):
        arn = key if key.startswith("arn:") else account.arn("kms", f"key/{key}")
        return Need(sid, why, at, actions, (arn,))
    aliases = {"kms:ResourceAliases": (key,)}
    keys = (account.arn("kms", "key/*"),)
    return Need(sid, why, at, actions, keys, aliases, condition="ForAnyValue:StringEquals")


def bucket(mount: S3Mount, at: str) -> Optional[BucketOf]:
    """What a mount behind AWS's own endpoint shows."""
    if mount.endpoint_url is not None:
        return None
    return BucketOf(mount.bucket, mount.prefix, FORM.place(at, "bucket"))


KIND = MountInquiry(needs=needs, shared=None, fsx=None, bucket=bucket, checks=())
