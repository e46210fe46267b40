"""Makes a CloudFormation template on moto, through the APIs that CloudFormation itself calls.

moto's own CloudFormation has no FSx, no egress rules and no file system policies. Properties become parameters of the
API's calls mostly as they stand, and botocore refuses what these do not know.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, Mapping

from tests.unit.preflight.world import ACCOUNT, REGION, World

Call = Callable[[Any, Dict[str, Any]], str]


def _tagged(kind: str, properties: Dict[str, Any]) -> Dict[str, Any]:
    tags = properties.pop("Tags", None)
    return {**properties, **({"TagSpecifications": [{"ResourceType": kind, "Tags": tags}]} if tags else {})}


def _vpc(world: World, given: Dict[str, Any]) -> str:
    dns = {key: given.pop(key) for key in ("EnableDnsSupport", "EnableDnsHostnames")}
    made: str = world.client("ec2").create_vpc(**_tagged("vpc", given))["Vpc"]["VpcId"]
    for key, value in dns.items():
        world.client("ec2").modify_vpc_attribute(VpcId=made, **{key: {"Value": value}})
    return made


def _group(world: World, given: Dict[str, Any]) -> str:
    out = given.pop("SecurityGroupEgress")
    assert [(rule["IpProtocol"], rule["CidrIp"]) for rule in out] == [("-1", "0.0.0.0/0")], "as EC2 makes it"
    description = given.pop("GroupDescription")
    made: str = world.client("ec2").create_security_group(
        GroupName=description, Description=description, **_tagged("security-group", given)
    )["GroupId"]
    return made


def _rule(direction: str, peer: str) -> Call:
    def call(world: World, given: Dict[str, Any]) -> str:
        group, other = given.pop("GroupId"), given.pop(peer)
        permission = {**given, "UserIdGroupPairs": [{"GroupId": other}]}
        authorize = getattr(world.client("ec2"), f"authorize_security_group_{direction}")
        authorize(GroupId=group, IpPermissions=[permission])
        return "rule"

    return call


def _efs(world: World, given: Dict[str, Any]) -> str:
    policy, tags = given.pop("FileSystemPolicy", None), given.pop("FileSystemTags")
    made: str = world.client("efs").create_file_system(Tags=tags, **given)["FileSystemId"]
    if policy is not None:
        world.client("efs").put_file_system_policy(FileSystemId=made, Policy=json.dumps(policy))
    return made


def _point(world: World, given: Dict[str, Any]) -> str:
    for part in (given.get("PosixUser", {}), given["RootDirectory"]["CreationInfo"]):
        part.update({key: int(value) for key, value in part.items() if key.endswith("id")})
    tags = given.pop("AccessPointTags")
    return str(world.client("efs").create_access_point(ClientToken="t", Tags=tags, **given)["AccessPointId"])


def _bucket(world: World, given: Dict[str, Any]) -> str:
    s3, name = world.client("s3"), given.pop("BucketName")
    s3.create_bucket(Bucket=name)
    encryption = given.pop("BucketEncryption")["ServerSideEncryptionConfiguration"]
    for rule in encryption:
        rule["ApplyServerSideEncryptionByDefault"] = rule.pop("ServerSideEncryptionByDefault")
    s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": encryption})
    s3.put_bucket_ownership_controls(Bucket=name, OwnershipControls=given.pop("OwnershipControls"))
    block = given.pop("PublicAccessBlockConfiguration")
    s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=block)
    life = given.pop("LifecycleConfiguration")
    for rule in life["Rules"]:
        rule |= {"ID": rule.pop("Id"), "Filter": {"Prefix": ""}}
    s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration=life)
    if "VersioningConfiguration" in given:
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration=given.pop("VersioningConfiguration"))
    assert given == {}
    return str(name)


def _role(world: World, given: Dict[str, Any]) -> str:
    trust = json.dumps(given.pop("AssumeRolePolicyDocument"))
    return str(world.client("iam").create_role(AssumeRolePolicyDocument=trust, **given)["Role"]["RoleName"])


def _policy(of: str, call: str, document: str) -> Call:
    def made(world: World, given: Dict[str, Any]) -> str:
        given[document] = json.dumps(given.pop("PolicyDocument"))
        getattr(world.client(of), call)(**given)
        if call == "put_bucket_policy":
            world.client(of).delete_bucket_policy(Bucket=given["Bucket"])  # moto denies whatever a condition says
        return "policy"

    return made


def _ec2(call: str, answer: str, kind: str = "") -> Call:
    def made(world: World, given: Dict[str, Any]) -> str:
        found: Any = getattr(world.client("ec2"), call)(**(_tagged(kind, given) if kind else given))
        for key in answer.split("."):
            found = found[key] if key else "done"
        return str(found)

    return made


def _fsx(world: World, given: Dict[str, Any]) -> str:
    return str(world.client("fsx").create_file_system(**given)["FileSystem"]["FileSystemId"])


CALLS: Mapping[str, Call] = {
    "AWS::EC2::VPC": _vpc,
    "AWS::EC2::Subnet": _ec2("create_subnet", "Subnet.SubnetId", "subnet"),
    "AWS::EC2::InternetGateway": _ec2(
        "create_internet_gateway", "InternetGateway.InternetGatewayId", "internet-gateway"
    ),
    "AWS::EC2::VPCGatewayAttachment": _ec2("attach_internet_gateway", ""),
    "AWS::EC2::EIP": _ec2("allocate_address", "AllocationId"),
    "AWS::EC2::NatGateway": _ec2("create_nat_gateway", "NatGateway.NatGatewayId", "natgateway"),
    "AWS::EC2::RouteTable": _ec2("create_route_table", "RouteTable.RouteTableId", "route-table"),
    "AWS::EC2::Route": _ec2("create_route", ""),
    "AWS::EC2::SubnetRouteTableAssociation": _ec2("associate_route_table", "AssociationId"),
    "AWS::EC2::VPCEndpoint": _ec2("create_vpc_endpoint", "VpcEndpoint.VpcEndpointId"),
    "AWS::EC2::SecurityGroup": _group,
    "AWS::EC2::SecurityGroupIngress": _rule("ingress", "SourceSecurityGroupId"),
    "AWS::EC2::SecurityGroupEgress": _rule("egress", "DestinationSecurityGroupId"),
    "AWS::EFS::FileSystem": _efs,
    "AWS::EFS::MountTarget": lambda world, given: str(
        world.client("efs").create_mount_target(**given)["MountTargetId"]
    ),
    "AWS::EFS::AccessPoint": _point,
    "AWS::FSx::FileSystem": _fsx,
    "AWS::S3::Bucket": _bucket,
    "AWS::S3::BucketPolicy": _policy("s3", "put_bucket_policy", "Policy"),
    "AWS::IAM::Role": _role,
    "AWS::IAM::RolePolicy": _policy("iam", "put_role_policy", "PolicyDocument"),
}


def make(world: World, template: Mapping[str, Any], parameters: Mapping[str, Any]) -> Dict[str, str]:
    """Make every resource in the order of what refers to what; the outputs: place in the configuration -> value."""
    resources = template["Resources"]
    given = {name: about.get("Default") for name, about in template["Parameters"].items()} | dict(parameters)
    made: Dict[str, str] = {}

    def value(of: Any) -> Any:
        if isinstance(of, dict):
            if set(of) == {"Ref"}:
                return given[of["Ref"]] if of["Ref"] in given else resource(of["Ref"])
            if set(of) == {"Fn::GetAtt"}:
                return attribute(*of["Fn::GetAtt"])
            if set(of) == {"Fn::Sub"}:
                return re.sub(r"\$\{([A-Za-z0-9:]+)\}", lambda found: pseudo(found[1]), of["Fn::Sub"])
            return {key: value(item) for key, item in of.items()}
        return [value(item) for item in of] if isinstance(of, list) else of

    def pseudo(name: str) -> str:
        known = {"AWS::Region": REGION, "AWS::Partition": "aws", "AWS::AccountId": ACCOUNT}
        return known[name] if name in known else resource(name)

    def attribute(name: str, of: str) -> str:
        found = resource(name)
        kind = resources[name]["Type"]
        answers = {
            ("AWS::EC2::EIP", "AllocationId"): found,
            ("AWS::IAM::Role", "Arn"): f"arn:aws:iam::{ACCOUNT}:role/{found}",
            ("AWS::FSx::FileSystem", "DNSName"): f"{found}.fsx.{REGION}.amazonaws.com",
            ("AWS::FSx::FileSystem", "LustreMountName"): "abcdefgh",
        }
        return answers[kind, of]

    def resource(name: str) -> str:
        if name not in made:
            about = resources[name]
            if "DependsOn" in about:
                resource(about["DependsOn"])
            made[name] = CALLS[about["Type"]](world, value(about["Properties"]))
        return made[name]

    for name in resources:
        resource(name)
    return {about["Description"]: str(value(about["Value"])) for about in template["Outputs"].values()}
