"""Mountpoint for S3: the bucket, and what the role must be allowed there."""

from __future__ import annotations

from typing import Iterator, Optional

from hyperpod_kit.config.mounts.mountpoint_s3 import KIND as FORM
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.preflight.mounts.inquiry import BucketOf, MountInquiry
from hyperpod_kit.preflight.permission import Account, Carried, Permission, sid_part_from_name
from hyperpod_kit.preflight.placement import NodeRole


def required_role_permissions(carried: Carried, account: Account, role: NodeRole) -> Iterator[Permission]:
    """Yield the permissions on the bucket of each mount that is behind AWS's own endpoint, and on its KMS key."""
    for mount, at in carried:
        if mount.endpoint_url is not None:
            continue
        bucket = f"arn:{account.partition}:s3:::{mount.bucket}"
        name, purpose = sid_part_from_name(mount.name), f"mount `{mount.name}`"
        if mount.bucket.endswith("--x-s3"):
            arn = account.arn("s3express", f"bucket/{mount.bucket}", mount.region)
            yield Permission(f"Mount{name}", purpose, at, ("s3express:CreateSession",), (arn,))
            continue
        yield Permission(f"List{name}", purpose, at, ("s3:ListBucket",), (bucket,))
        actions = ["s3:GetObject"]
        if not mount.read_only:
            actions += ["s3:PutObject", "s3:AbortMultipartUpload"]
            if mount.allow_delete:
                actions.append("s3:DeleteObject")
        yield Permission(f"Mount{name}", purpose, at, tuple(actions), (f"{bucket}/{mount.prefix}*",))
        if not mount.read_only and mount.sse_kms_key_id:
            yield _kms_key_permission(mount.sse_kms_key_id, f"Key{name}", purpose, at, account)


def _kms_key_permission(key: str, sid: str, purpose: str, at: str, account: Account) -> Permission:
    """Return the permission on the KMS key that new objects are encrypted with.

    `key`: an ARN, an id, or an alias, which no policy's resource can name.
    """
    at, actions = f"{at}.sse_kms_key_id", ("kms:GenerateDataKey", "kms:Decrypt")
    if not key.startswith("alias/"):
        if key.startswith("arn:"):
            arn = key
        else:
            arn = account.arn("kms", f"key/{key}")
        return Permission(sid, purpose, at, actions, (arn,))
    aliases = {"kms:ResourceAliases": (key,)}
    keys = (account.arn("kms", "key/*"),)
    return Permission(sid, purpose, at, actions, keys, aliases, condition="ForAnyValue:StringEquals")


def bucket_of_mount_if_aws(mount: S3Mount, at: str) -> Optional[BucketOf]:
    """Return the part of a bucket that a mount shows, None behind an endpoint that is not AWS's."""
    if mount.endpoint_url is not None:
        return None
    return BucketOf(mount.bucket, mount.prefix, FORM.configuration_path_of_key(at, "bucket"))


KIND = MountInquiry(
    permissions=required_role_permissions, shared=None, fsx=None, bucket=bucket_of_mount_if_aws, checks=()
)
