"""An account on moto in which the example configuration is right: a test breaks one thing in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from hyperpod_kit.aws.quotas import ALTOGETHER, PER_CLUSTER, cluster_quota_name
from hyperpod_kit.aws.session import client
from hyperpod_kit.config.load import load
from hyperpod_kit.preflight import role_policy
from hyperpod_kit.preflight.checks.required_permissions import required_permissions
from hyperpod_kit.preflight.placement import execution_roles
from tests.unit.preflight import moto_more

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
REGION, ACCOUNT = "us-east-1", "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/HyperPodKitDemo"


@dataclass
class World:
    """Ids of what there is, and the values of the configuration that names it."""

    values: dict[str, Any]
    vpc: str = ""
    gateway: str = ""
    subnet: str = ""
    table: str = ""
    nodes: str = ""
    storage: str = ""
    efs: str = ""
    point: str = ""
    lustre: str = ""
    clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        """A boto3 client, made once."""
        if service not in self.clients:
            self.clients[service] = client(service, REGION)
        return self.clients[service]

    def write(self, directory: Path, *changes: Callable[[dict[str, Any]], Any]) -> Path:
        """The configuration as a file, with changes to its values."""
        values = json.loads(json.dumps(self.values))
        for change in changes:
            change(values)
        path = directory / "provisioning_parameters.json"
        path.write_text(json.dumps(values, indent=2))
        return path

    def allow(self, direction: str, group: str, **permission: Any) -> None:
        """Add one rule. `direction`: ingress or egress."""
        call = getattr(self.client("ec2"), f"authorize_security_group_{direction}")
        call(GroupId=group, IpPermissions=[{"IpProtocol": "-1", **permission}])

    def rules(self, group: str) -> tuple[list[Any], list[Any]]:
        """What a group allows, in and out."""
        found = self.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
        return found["IpPermissions"], found["IpPermissionsEgress"]

    def shut(self, group: str) -> None:
        """Remove every rule of a group."""
        ingress, egress = self.rules(group)
        if ingress:
            self.client("ec2").revoke_security_group_ingress(GroupId=group, IpPermissions=ingress)
        if egress:
            self.client("ec2").revoke_security_group_egress(GroupId=group, IpPermissions=egress)

    def route(self, **target: Any) -> None:
        """Send what leaves the subnet somewhere else."""
        self.client("ec2").replace_route(RouteTableId=self.table, DestinationCidrBlock="0.0.0.0/0", **target)


CLOSED = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Sid": "Nodes",
            "Effect": "Allow",
            "Principal": {"AWS": ROLE},
            "Action": ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"],
        }
    ],
}
"""A file system's policy that lets the nodes' role in and nobody else."""


def build(directory: Path) -> World:
    """Make the account; moto must be on."""
    world = World(json.loads(EXAMPLE.read_text()))
    _network(world)
    _storage(world)
    kit = world.values["hyperpod_kit"]
    kit["cluster"]["execution_role"] = ROLE
    kit["cluster"]["vpc"] = {"security_group_ids": [world.nodes], "subnet_ids": [world.subnet]}
    kit["cluster"]["instance_groups"][1]["instance_type"] = "ml.p4d.24xlarge"
    kit["mounts"][0] |= {"file_system_id": world.efs, "access_point_id": world.point, "iam": True}
    world.values["fsx_dns_name"] = f"{world.lustre}.fsx.{REGION}.amazonaws.com"
    settings = load(world.write(directory))
    iam = world.client("iam")
    iam.create_role(RoleName="HyperPodKitDemo", AssumeRolePolicyDocument=json.dumps(role_policy.trust_policy()))
    permissions = json.dumps(
        role_policy.permissions_policy(required_permissions(settings, execution_roles(settings)[0]))
    )
    iam.put_role_policy(RoleName="HyperPodKitDemo", PolicyName="hyperpod-kit", PolicyDocument=permissions)
    moto_more.QUOTAS.clear()
    for group in settings.cluster.groups:
        moto_more.QUOTAS[cluster_quota_name(group.instance_type)] = float(group.count)
    moto_more.QUOTAS.update({"Something else": 1.0, PER_CLUSTER: 20.0, ALTOGETHER: 30.0})
    return world


def _network(world: World) -> None:
    ec2 = world.client("ec2")
    world.vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=world.vpc, EnableDnsHostnames={"Value": True})
    world.subnet = subnet(world, "10.0.1.0/24", "us-east-1a")
    world.gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=world.gateway, VpcId=world.vpc)
    public = subnet(world, "10.0.0.0/24", "us-east-1a")
    nat = ec2.create_nat_gateway(SubnetId=public, ConnectivityType="private")["NatGateway"]["NatGatewayId"]
    world.table = ec2.create_route_table(VpcId=world.vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=world.table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat)
    ec2.associate_route_table(RouteTableId=world.table, SubnetId=world.subnet)
    world.nodes = group(world, "nodes")
    itself = [{"GroupId": world.nodes}]
    world.allow("ingress", world.nodes, UserIdGroupPairs=itself)
    world.allow("egress", world.nodes, UserIdGroupPairs=itself)
    world.storage = group(world, "storage")
    world.allow("ingress", world.storage, UserIdGroupPairs=itself)
    for low, high in ((988, 988), (1018, 1023)):
        world.allow(
            "ingress",
            world.nodes,
            IpProtocol="tcp",
            FromPort=low,
            ToPort=high,
            UserIdGroupPairs=[{"GroupId": world.storage}],
        )


def subnet(world: World, cidr: str, zone: str) -> str:
    """A subnet of the VPC, with the main route table."""
    made = world.client("ec2").create_subnet(VpcId=world.vpc, CidrBlock=cidr, AvailabilityZone=zone)
    return str(made["Subnet"]["SubnetId"])


def group(world: World, name: str) -> str:
    """A security group as EC2 makes it: nothing in, everything out."""
    return str(world.client("ec2").create_security_group(GroupName=name, Description=name, VpcId=world.vpc)["GroupId"])


def _storage(world: World) -> None:
    s3, efs, fsx = world.client("s3"), world.client("efs"), world.client("fsx")
    for bucket in ("sagemaker-hyperpod-kit-demo", "sagemaker-hyperpod-kit-data"):
        s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket="sagemaker-hyperpod-kit-data", Key="corpus/0", Body=b"x")
    world.efs = efs.create_file_system(CreationToken="home")["FileSystemId"]
    efs.create_mount_target(FileSystemId=world.efs, SubnetId=world.subnet, SecurityGroups=[world.storage])
    efs.put_file_system_policy(FileSystemId=world.efs, Policy=json.dumps(CLOSED))
    made = efs.create_access_point(FileSystemId=world.efs, ClientToken="t", PosixUser={"Uid": 2001, "Gid": 2001})
    world.point = made["AccessPointId"]
    world.lustre = fsx.create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[world.subnet],
        SecurityGroupIds=[world.storage],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2"},
    )["FileSystem"]["FileSystemId"]
