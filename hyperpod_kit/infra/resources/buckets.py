"""Buckets: closed, encrypted, with TLS alone, and the rests of broken uploads removed after a week."""

from __future__ import annotations

from typing import Any

from hyperpod_kit.aws.buckets import ZONAL, directory_bucket_zone
from hyperpod_kit.aws.policies import VERSION
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.infra.part import KEPT, TemplatePart, logical_id_part, ref, resource
from hyperpod_kit.preflight.aws_facts.buckets import bucket_config_paths

UNFINISHED_DAYS = 7


def bucket_parts(settings: Settings) -> list[TemplatePart]:
    """Return one part for each bucket. That of the bundle keeps versions: whoever replaces a bundle is root of
    the nodes to come."""
    return [
        TemplatePart(
            f"bucket {name}",
            (path,),
            _directory_bucket_resources(name)
            if name.endswith(ZONAL)
            else _bucket_resources(name, versioned=name == settings.bundle.bucket),
        )
        for name, path in bucket_config_paths(settings).items()
    ]


def _directory_bucket_resources(name: str) -> dict[str, Any]:
    """Return the resource of a directory bucket, which is encrypted and closed by default."""
    properties = {
        "BucketName": name,
        "LocationName": directory_bucket_zone(name),
        "DataRedundancy": "SingleAvailabilityZone",
    }
    return {f"Bucket{logical_id_part(name)}": resource("AWS::S3Express::DirectoryBucket", properties, **KEPT)}


def _bucket_resources(name: str, *, versioned: bool) -> dict[str, Any]:
    logical = f"Bucket{logical_id_part(name)}"
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
