"""The same in Terraform's JSON syntax (`main.tf.json`): each resource translated from the one form of template.py.

Names of arguments are mostly CloudFormation's in snake case; what differs stands in a table, and where one resource
becomes several there is a function. Attributes that other resources ask for are in ATTRIBUTES.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

from hyperpod_kit.infra.part import MultipleRule, Resource, TemplatePart

PSEUDO = {
    "AWS::AccountId": "data.aws_caller_identity.current.account_id",
    "AWS::Partition": "data.aws_partition.current.partition",
}
_REFERENCE = re.compile(r"\$\{([A-Za-z0-9:.]+)\}")


def terraform_configuration(region: str, parts: list[TemplatePart]) -> dict[str, Any]:
    """Return the Terraform configuration of the parts as JSON values, for `region`."""
    resources = {name: value for part in parts for name, value in part.resources.items()}
    parameters = {name: value for part in parts for name, value in part.parameters.items()}
    expressions = _Expressions(region, resources, set(parameters))
    rules = {rule.parameter: rule for part in parts for rule in part.rules}
    made: dict[str, dict[str, Any]] = {}
    for name, given in resources.items():
        kind = given["Type"]
        for tf in TYPES[kind](
            _to_snake_case(name), expressions.with_expressions(given["Properties"], policies_as_json=True)
        ):
            arguments = dict(tf.arguments)
            if given.get("DeletionPolicy") == "Retain" and tf.first:
                arguments["lifecycle"] = {"prevent_destroy": True}
            preconditions = [
                _precondition(rules[word])
                for word in (_parameter_name(value) for value in given["Properties"].values())
                if word in rules and tf.first
            ]
            if preconditions:
                arguments["lifecycle"] = {**arguments.get("lifecycle", {}), "precondition": preconditions}
            if "DependsOn" in given:
                arguments["depends_on"] = [expressions.terraform_address(given["DependsOn"])]
            made.setdefault(tf.kind, {})[tf.label] = arguments
    ids = {path: value for part in parts for path, value in part.ids.items()}
    return {
        "terraform": {
            "required_version": ">= 1.5",
            "required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 6.0"}},
        },
        "provider": {"aws": {"region": region}},
        "data": {"aws_caller_identity": {"current": {}}, "aws_partition": {"current": {}}},
        "variable": {_to_snake_case(name): _variable_from_parameter(value) for name, value in parameters.items()},
        "resource": made,
        "output": {
            f"value_{number}": {"description": path, "value": expressions.with_expressions(value)}
            for number, (path, value) in enumerate(ids.items(), 1)
        },
    }


def _parameter_name(value: Any) -> str:
    """Name of the parameter that a property refers to as a whole; "" for any other property."""
    if isinstance(value, Mapping) and set(value) == {"Ref"}:
        return str(value["Ref"])
    return ""


def _precondition(rule: MultipleRule) -> dict[str, str]:
    steps = ", ".join(f"{value} = {step}" for value, step in rule.steps.items())
    parameter, by = _to_snake_case(rule.parameter), _to_snake_case(rule.by)
    text = ", ".join(f"{step} where {by} is {value}" for value, step in rule.steps.items())
    return {
        "condition": f"${{var.{parameter} % lookup({{{steps}}}, var.{by}, 1) == 0}}",
        "error_message": f"{parameter} must be a multiple of this many {rule.unit}: {text}.",
    }


class _Expressions:
    """Turns CloudFormation's references into Terraform's expressions."""

    def __init__(self, region: str, resources: Mapping[str, Resource], parameters: set[str]) -> None:
        self._region = region
        self._resources = resources
        self._parameters = parameters

    def terraform_address(self, name: str) -> str:
        """Return the address of a resource, `aws_vpc.vpc`."""
        of = self._resources[name]
        return f"{TYPES[of['Type']](_to_snake_case(name), of['Properties'])[0].kind}.{_to_snake_case(name)}"

    def with_expressions(self, value: Any, *, policies_as_json: bool = False) -> Any:
        """Return the value with every reference as `${...}`; `policies`: policy documents become their JSON text."""
        if isinstance(value, Mapping):
            if set(value) == {"Ref"}:
                return f"${{{self._reference_expression(value['Ref'], 'Ref')}}}"
            if set(value) == {"Fn::GetAtt"}:
                name, attribute = value["Fn::GetAtt"]
                return f"${{{self._reference_expression(name, attribute)}}}"
            if set(value) == {"Fn::Sub"}:
                return _REFERENCE.sub(lambda match: self._interpolate(match[1]), value["Fn::Sub"])
            if policies_as_json and "Statement" in value and "Version" in value:
                return json.dumps(self.with_expressions(value))
            return {key: self.with_expressions(item, policies_as_json=policies_as_json) for key, item in value.items()}
        if isinstance(value, list):
            return [self.with_expressions(item, policies_as_json=policies_as_json) for item in value]
        if isinstance(value, str):
            return value.replace("${", "$${")
        return value

    def _interpolate(self, name: str) -> str:
        """Return the Terraform expression of a reference within an Fn::Sub text."""
        if name == "AWS::Region":
            return self._region
        return f"${{{self._reference_expression(name, 'Ref')}}}"

    def _reference_expression(self, name: str, attribute: str) -> str:
        if name in PSEUDO:
            return PSEUDO[name]
        if name in self._parameters:
            return f"var.{_to_snake_case(name)}"
        return f"{self.terraform_address(name)}.{ATTRIBUTES.get((self._resources[name]['Type'], attribute), 'id')}"


def _variable_from_parameter(parameter: Mapping[str, Any]) -> dict[str, Any]:
    number = parameter["Type"] == "Number"
    kind = "string"
    if number:
        kind = "number"
    made: dict[str, Any] = {"type": kind, "description": parameter["Description"]}
    if "Default" in parameter:
        made["default"] = parameter["Default"]
    return made


def _to_snake_case(name: str) -> str:
    """Convert `NodesFromStorage988` to `nodes_from_storage988`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


# CloudFormation's types of resources as Terraform's: hashicorp/aws, version 6.

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


def _one_to_one_translation(kind: str, **argument_names: str) -> Translation:
    """Return a translation to one resource with the same arguments.

    `argument_names`: property -> argument where it is not its snake case.
    """

    def translated(label: str, properties: Properties) -> list[TfResource]:
        return [TfResource(kind, label, _terraform_arguments(properties, argument_names))]

    return translated


def _terraform_arguments(properties: Properties, argument_names: Optional[Mapping[str, str]] = None) -> dict[str, Any]:
    argument_names = argument_names or {}
    made: dict[str, Any] = {}
    for key, value in properties.items():
        if key in ("Tags", "FileSystemTags", "AccessPointTags"):
            made["tags"] = {tag["Key"]: tag["Value"] for tag in value}
        else:
            made[argument_names.get(key, _snake_case(key))] = _with_snake_case_keys(value)
    return made


def _with_snake_case_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_snake_case(key): _with_snake_case_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_snake_case_keys(item) for item in value]
    return value


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _translate_security_group(label: str, properties: Properties) -> list[TfResource]:
    """Return the group and its rule to everywhere as two resources: rules within the group and beside it exclude
    each other."""
    given = dict(properties)
    given.pop("SecurityGroupEgress", None)
    return [
        TfResource("aws_security_group", label, _terraform_arguments(given, {"GroupDescription": "description"})),
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


def _security_group_rule_translation(direction: str, peer_property: str) -> Translation:
    return _one_to_one_translation(
        f"aws_vpc_security_group_{direction}_rule",
        GroupId="security_group_id",
        **{peer_property: "referenced_security_group_id"},
    )


def _translate_efs_file_system(label: str, properties: Properties) -> list[TfResource]:
    given = dict(properties)
    policy = given.pop("FileSystemPolicy", None)
    made = [TfResource("aws_efs_file_system", label, _terraform_arguments(given))]
    if policy is not None:
        arguments = {"file_system_id": f"${{aws_efs_file_system.{label}.id}}", "policy": policy}
        made.append(TfResource("aws_efs_file_system_policy", label, arguments, first=False))
    return made


def _translate_access_point(label: str, properties: Properties) -> list[TfResource]:
    given = dict(properties)
    root = given.pop("RootDirectory", {})
    made = _terraform_arguments(given)
    made["root_directory"] = {
        "path": root.get("Path"),
        "creation_info": {_snake_case(key): value for key, value in root.get("CreationInfo", {}).items()},
    }
    return [TfResource("aws_efs_access_point", label, made)]


def _translate_fsx_file_system(label: str, properties: Properties) -> list[TfResource]:
    """Return the file system in Terraform's type for its kind, where CloudFormation has one type with a block
    for each kind."""
    given = dict(properties)
    lustre = given.pop("LustreConfiguration", None)
    zfs = given.pop("OpenZFSConfiguration", None)
    given.pop("FileSystemType", None)
    kind = "aws_fsx_lustre_file_system"
    if zfs is not None:
        kind = "aws_fsx_openzfs_file_system"
    return [TfResource(kind, label, _terraform_arguments({**given, **(lustre or zfs or {})}))]


def _translate_openzfs_volume(label: str, properties: Properties) -> list[TfResource]:
    given = dict(properties)
    zfs = given.pop("OpenZFSConfiguration", {})
    given.pop("VolumeType", None)
    return [TfResource("aws_fsx_openzfs_volume", label, _terraform_arguments({**given, **zfs}))]


def _translate_bucket(label: str, properties: Properties) -> list[TfResource]:
    """Return the bucket and, as Terraform wants it, a resource for each of its properties."""
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
        further("public_access_block", **_with_snake_case_keys(given["PublicAccessBlockConfiguration"]))
    for rule in given.get("LifecycleConfiguration", {}).get("Rules", []):
        unfinished = _with_snake_case_keys(rule["AbortIncompleteMultipartUpload"])
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


def _translate_directory_bucket(label: str, properties: Properties) -> list[TfResource]:
    given = properties
    arguments = {
        "bucket": given.get("BucketName"),
        "location": {"name": given.get("LocationName")},
        "data_redundancy": given.get("DataRedundancy"),
    }
    return [TfResource("aws_s3_directory_bucket", label, arguments)]


TYPES: dict[str, Translation] = {
    "AWS::EC2::VPC": _one_to_one_translation("aws_vpc"),
    "AWS::EC2::InternetGateway": _one_to_one_translation("aws_internet_gateway"),
    "AWS::EC2::VPCGatewayAttachment": _one_to_one_translation("aws_internet_gateway_attachment"),
    "AWS::EC2::Subnet": _one_to_one_translation("aws_subnet"),
    "AWS::EC2::EIP": _one_to_one_translation("aws_eip"),
    "AWS::EC2::NatGateway": _one_to_one_translation("aws_nat_gateway"),
    "AWS::EC2::RouteTable": _one_to_one_translation("aws_route_table"),
    "AWS::EC2::Route": _one_to_one_translation("aws_route"),
    "AWS::EC2::SubnetRouteTableAssociation": _one_to_one_translation("aws_route_table_association"),
    "AWS::EC2::VPCEndpoint": _one_to_one_translation("aws_vpc_endpoint"),
    "AWS::EC2::SecurityGroup": _translate_security_group,
    "AWS::EC2::SecurityGroupIngress": _security_group_rule_translation("ingress", "SourceSecurityGroupId"),
    "AWS::EC2::SecurityGroupEgress": _security_group_rule_translation("egress", "DestinationSecurityGroupId"),
    "AWS::EFS::FileSystem": _translate_efs_file_system,
    "AWS::EFS::MountTarget": _one_to_one_translation("aws_efs_mount_target"),
    "AWS::EFS::AccessPoint": _translate_access_point,
    "AWS::FSx::FileSystem": _translate_fsx_file_system,
    "AWS::FSx::Volume": _translate_openzfs_volume,
    "AWS::S3::Bucket": _translate_bucket,
    "AWS::S3::BucketPolicy": _one_to_one_translation("aws_s3_bucket_policy", PolicyDocument="policy"),
    "AWS::S3Express::DirectoryBucket": _translate_directory_bucket,
    "AWS::IAM::Role": _one_to_one_translation(
        "aws_iam_role", RoleName="name", AssumeRolePolicyDocument="assume_role_policy"
    ),
    "AWS::IAM::RolePolicy": _one_to_one_translation(
        "aws_iam_role_policy", RoleName="role", PolicyName="name", PolicyDocument="policy"
    ),
}
"""Every type that parts have."""
