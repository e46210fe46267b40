"""CloudFormation's types of resources as Terraform's: hashicorp/aws, version 6."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

Properties = Mapping[str, Any]
"""Of the resource, with Terraform's expressions in place of references."""


@dataclass(frozen=True)
class TfResource:
    """`kind`.`label` with its arguments. `first`: what others refer to by CloudFormation's one name."""

    kind: str
    label: str
    arguments: Mapping[str, Any]
    first: bool = True


Translation = Callable[[str, Properties], list[TfResource]]

ATTRIBUTES = {
    ("AWS::EC2::EIP", "AllocationId"): "allocation_id",
    ("AWS::FSx::FileSystem", "DNSName"): "dns_name",
    ("AWS::FSx::FileSystem", "LustreMountName"): "mount_name",
    ("AWS::FSx::FileSystem", "RootVolumeId"): "root_volume_id",
    ("AWS::IAM::Role", "Arn"): "arn",
    ("AWS::IAM::Role", "Ref"): "name",
    ("AWS::S3::Bucket", "Ref"): "bucket",
}
"""(type, attribute) -> Terraform's attribute; `id` for all others."""


def _plain(kind: str, **other: str) -> Translation:
    """Translate to one resource with the same arguments.

    `other`: property -> argument where it is not its snake case.
    """

    def translated(label: str, properties: Properties) -> list[TfResource]:
        return [TfResource(kind, label, _arguments(properties, other))]

    return translated


def _arguments(properties: Properties, other: Optional[Mapping[str, str]] = None) -> dict[str, Any]:
    other = other or {}
    made: dict[str, Any] = {}
    for key, value in properties.items():
        if key in ("Tags", "FileSystemTags", "AccessPointTags"):
            made["tags"] = {tag["Key"]: tag["Value"] for tag in value}
        else:
            made[other.get(key, _snake(key))] = _nested(value)
    return made


def _nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_snake(key): _nested(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nested(item) for item in value]
    return value


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _group(label: str, properties: Properties) -> list[TfResource]:
    """Its rule to everywhere is a resource of its own: rules within the group and beside it exclude each other."""
    given = dict(properties)
    given.pop("SecurityGroupEgress", None)
    return [
        TfResource("aws_security_group", label, _arguments(given, {"GroupDescription": "description"})),
        TfResource(
            "aws_vpc_security_group_egress_rule",
            f"{label}_out",
            {
                "security_group_id": f"${{aws_security_group.{label}.id}}",
                "ip_protocol": "-1",
                "cidr_ipv4": "0.0.0.0/0",
            },
            first=False,
        ),
    ]


def _rule(direction: str, peer: str) -> Translation:
    return _plain(
        f"aws_vpc_security_group_{direction}_rule",
        GroupId="security_group_id",
        **{peer: "referenced_security_group_id"},
    )


def _efs(label: str, properties: Properties) -> list[TfResource]:
    given = dict(properties)
    policy = given.pop("FileSystemPolicy", None)
    made = [TfResource("aws_efs_file_system", label, _arguments(given))]
    if policy is not None:
        arguments = {"file_system_id": f"${{aws_efs_file_system.{label}.id}}", "policy": policy}
        made.append(TfResource("aws_efs_file_system_policy", label, arguments, first=False))
    return made


def _point(label: str, properties: Properties) -> list[TfResource]:
    given = dict(properties)
    root = given.pop("RootDirectory", {})
    made = _arguments(given)
    made["root_directory"] = {
        "path": root.get("Path"),
        "creation_info": {_snake(key): value for key, value in root.get("CreationInfo", {}).items()},
    }
    return [TfResource("aws_efs_access_point", label, made)]


def _fsx(label: str, properties: Properties) -> list[TfResource]:
    """CloudFormation has one type with a block for each kind of file system, Terraform one type a kind."""
    given = dict(properties)
    lustre = given.pop("LustreConfiguration", None)
    zfs = given.pop("OpenZFSConfiguration", None)
    given.pop("FileSystemType", None)
    kind = "aws_fsx_lustre_file_system"
    if zfs is not None:
        kind = "aws_fsx_openzfs_file_system"
    return [TfResource(kind, label, _arguments({**given, **(lustre or zfs or {})}))]


def _volume(label: str, properties: Properties) -> list[TfResource]:
    given = dict(properties)
    zfs = given.pop("OpenZFSConfiguration", {})
    given.pop("VolumeType", None)
    return [TfResource("aws_fsx_openzfs_volume", label, _arguments({**given, **zfs}))]


def _bucket(label: str, properties: Properties) -> list[TfResource]:
    """Terraform has a resource for each property of a bucket."""
    given = dict(properties)
    made = [TfResource("aws_s3_bucket", label, {"bucket": given.get("BucketName")})]

    def further(kind: str, **arguments: Any) -> None:
        of = {"bucket": f"${{aws_s3_bucket.{label}.id}}", **arguments}
        made.append(TfResource(f"aws_s3_bucket_{kind}", label, of, first=False))

    if "VersioningConfiguration" in given:
        further("versioning", versioning_configuration={"status": given["VersioningConfiguration"]["Status"]})
    if "BucketEncryption" in given:
        rules = given["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        default = {"sse_algorithm": rules[0]["ServerSideEncryptionByDefault"]["SSEAlgorithm"]}
        further("server_side_encryption_configuration", rule={"apply_server_side_encryption_by_default": default})
    if "OwnershipControls" in given:
        further(
            "ownership_controls", rule={"object_ownership": given["OwnershipControls"]["Rules"][0]["ObjectOwnership"]}
        )
    if "PublicAccessBlockConfiguration" in given:
        further("public_access_block", **_nested(given["PublicAccessBlockConfiguration"]))
    for rule in given.get("LifecycleConfiguration", {}).get("Rules", []):
        unfinished = _nested(rule["AbortIncompleteMultipartUpload"])
        further(
            "lifecycle_configuration",
            rule={
                "id": rule["Id"],
                "status": rule["Status"],
                "filter": {},
                "abort_incomplete_multipart_upload": unfinished,
            },
        )
    return made


def _zonal_bucket(label: str, properties: Properties) -> list[TfResource]:
    given = properties
    arguments = {
        "bucket": given.get("BucketName"),
        "location": {"name": given.get("LocationName")},
        "data_redundancy": given.get("DataRedundancy"),
    }
    return [TfResource("aws_s3_directory_bucket", label, arguments)]


TYPES: dict[str, Translation] = {
    "AWS::EC2::VPC": _plain("aws_vpc"),
    "AWS::EC2::InternetGateway": _plain("aws_internet_gateway"),
    "AWS::EC2::VPCGatewayAttachment": _plain("aws_internet_gateway_attachment"),
    "AWS::EC2::Subnet": _plain("aws_subnet"),
    "AWS::EC2::EIP": _plain("aws_eip"),
    "AWS::EC2::NatGateway": _plain("aws_nat_gateway"),
    "AWS::EC2::RouteTable": _plain("aws_route_table"),
    "AWS::EC2::Route": _plain("aws_route"),
    "AWS::EC2::SubnetRouteTableAssociation": _plain("aws_route_table_association"),
    "AWS::EC2::VPCEndpoint": _plain("aws_vpc_endpoint"),
    "AWS::EC2::SecurityGroup": _group,
    "AWS::EC2::SecurityGroupIngress": _rule("ingress", "SourceSecurityGroupId"),
    "AWS::EC2::SecurityGroupEgress": _rule("egress", "DestinationSecurityGroupId"),
    "AWS::EFS::FileSystem": _efs,
    "AWS::EFS::MountTarget": _plain("aws_efs_mount_target"),
    "AWS::EFS::AccessPoint": _point,
    "AWS::FSx::FileSystem": _fsx,
    "AWS::FSx::Volume": _volume,
    "AWS::S3::Bucket": _bucket,
    "AWS::S3::BucketPolicy": _plain("aws_s3_bucket_policy", PolicyDocument="policy"),
    "AWS::S3Express::DirectoryBucket": _zonal_bucket,
    "AWS::IAM::Role": _plain("aws_iam_role", RoleName="name", AssumeRolePolicyDocument="assume_role_policy"),
    "AWS::IAM::RolePolicy": _plain("aws_iam_role_policy", RoleName="role", PolicyName="name", PolicyDocument="policy"),
}
"""Every type that parts have."""
