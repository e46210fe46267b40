"""Buckets: closed, encrypted, with TLS alone, and the rests of broken uploads removed after a week."""

from __future__ import annotations

from typing import Any

from hyperpod_kit.aws.buckets import ZONAL, zone_of
from hyperpod_kit.aws.policies import VERSION
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.infra.part import KEPT, TemplatePart, logical_name, ref, resource
from hyperpod_kit.preflight.aws_facts.buckets import bucket_paths

UNFINISHED_DAYS = 7


def parts(settings: Settings) -> list[TemplatePart]:
    """Make one part a bucket. That of the bundle keeps versions: who replaces a bundle is root of the nodes to come."""
    return [
        TemplatePart(
            f"bucket {name}",
            (path,),
            _zonal(name) if name.endswith(ZONAL) else _bucket(name, versioned=name == settings.bundle.bucket),
        )
        for name, path in bucket_paths(settings).items()
    ]


def _zonal(name: str) -> dict[str, Any]:
    """A directory bucket: encrypted and closed by itself."""
    properties = {"BucketName": name, "LocationName": zone_of(name), "DataRedundancy": "SingleAvailabilityZone"}
    return {f"Bucket{logical_name(name)}": resource("AWS::S3Express::DirectoryBucket", properties, **KEPT)}


def _bucket(name: str, *, versioned: bool) -> dict[str, Any]:
    logical = f"Bucket{logical_name(name)}"
    properties: dict[str, Any] = {
        "BucketName": name,
        "BucketEncryption": {
            "ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
        },
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "PublicAccessBlockConfiguration": {
            "BlockPublicAcls": True,
            "BlockPublicPolicy": True,
            "IgnorePublicAcls": True,
            "RestrictPublicBuckets": True,
        },
        "LifecycleConfiguration": {
            "Rules": [
                {
                    "Id": "unfinished-uploads",
                    "Status": "Enabled",
                    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UNFINISHED_DAYS},
                }
            ]
        },
    }
    if versioned:
        properties["VersioningConfiguration"] = {"Status": "Enabled"}
    everything = [{"Fn::Sub": f"arn:${{AWS::Partition}}:s3:::{name}{rest}"} for rest in ("", "/*")]
    policy = {
        "Version": VERSION,
        "Statement": [
            {
                "Sid": "NeedsTls",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": everything,
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }
    return {
        logical: resource("AWS::S3::Bucket", properties, **KEPT),
        f"{logical}Policy": resource("AWS::S3::BucketPolicy", {"Bucket": ref(logical), "PolicyDocument": policy}),
    }
