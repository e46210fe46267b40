"""Inputs as AWS's own repository, tools and API give them (awsome-distributed-training at 7217859, 21 February 2026).

Names and numbers of an account are invented; keys, their order and their odd values are AWS's.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any, Dict, Tuple

ROLE = "arn:aws:iam::111122223333:role/AmazonSagemakerExecutionRole"
SCRIPTS = "s3://sagemaker-lifecycle-0a1b2c3d4e/LifecycleScripts/base-config/"
LUSTRE = "fs-12345678a90b01cde.fsx.us-west-2.amazonaws.com"
OPENZFS = "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
VPC = {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": ["subnet-0123456789abcdef0"]}
IN_VPC = ("--subnet", "subnet-0123456789abcdef0", "--security-group", "sg-0123456789abcdef0")
NEW = ("--name", "ml", "--execution-role", ROLE, "--worker-type", "ml.p5.48xlarge", "--workers", "2", *IN_VPC)
"""What a request would say, where there are AWS's parameters alone."""


def group(name: str, kind: str, count: int, gib: int = 0, **more: Any) -> Dict[str, Any]:
    ebs = {"InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": gib}}]} if gib else {}
    return {
        "InstanceGroupName": name,
        "InstanceType": kind,
        "InstanceCount": count,
        "LifeCycleConfig": {"SourceS3Uri": SCRIPTS, "OnCreate": "on_create.sh"},
        "ExecutionRole": ROLE,
        "ThreadsPerCore": 1,
        **ebs,
        **more,
    }


def parameters(login: str, *workers: Tuple[str, str], **more: Any) -> Dict[str, Any]:
    return {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "controller-machine",
        "login_group": login,
        "worker_groups": [{"instance_group_name": name, "partition_name": partition} for name, partition in workers],
        "fsx_dns_name": LUSTRE,
        "fsx_mountname": "1abcdefg",
        **more,
    }


@dataclass(frozen=True)
class Input:
    """What is given to `init`; `notes`: pieces of what it must say, each in a line of its own."""

    cluster: Any = None
    parameters: Any = None
    flags: Tuple[str, ...] = ("--region", "us-west-2")
    notes: Tuple[str, ...] = ()


_README = [group("controller-machine", "ml.c5.xlarge", 1), group("compute-nodes", "ml.trn1.32xlarge", 4)]
_TEMPLATE = parameters("my-login-group", ("compute-nodes", "dev"))
_NO_LOGIN = "login_group `my-login-group`: the cluster has no instance group of that name"

_BY_AUTOMATION = {
    "ClusterName": "ml-cluster",
    "InstanceGroups": [
        group("controller-machine", "ml.m5.12xlarge", 1, 500),
        group("login-group", "ml.m5.4xlarge", 1, 500),
        group(
            "worker-group-1",
            "ml.p5.48xlarge",
            2,
            500,
            TrainingPlanArn="arn:aws:sagemaker:us-west-2:111122223333:training-plan/p5-plan",
        ),
        group("worker-group-2", "ml.p5.48xlarge", 2, 500),
    ],
    "VpcConfig": VPC,
}
_ITS_WORKERS = (("worker-group-1", "ml.p5.48xlarge"), ("worker-group-2", "ml.p5.48xlarge"))
_TWO_HEADS = copy.deepcopy(_BY_AUTOMATION)
_TWO_HEADS["InstanceGroups"][0]["InstanceCount"] = 2  # type: ignore[index]

_BY_TERRAFORM = {
    "ClusterName": "ml-cluster",
    "InstanceGroups": [
        group("compute-nodes", "ml.g5.4xlarge", 2, 500),
        group("controller-machine", "ml.c5.xlarge", 1, 100),
        group("login-nodes", "ml.m5.4xlarge", 1, 100),
    ],
    "NodeRecovery": "Automatic",
    "VpcConfig": VPC,
    "Tags": [{"Key": "Name", "Value": "hyperpod-hyperpod-cluster"}],
}


def _of_today(name: str, kind: str, count: int, **more: Any) -> Dict[str, Any]:
    lifecycle = {"SourceS3Uri": "s3://sagemaker-mine/lifecycle/", "OnInitComplete": "on_init.sh"}
    return {**group(name, kind, count), "LifeCycleConfig": lifecycle, **more}


_BY_THE_API = {
    "ClusterName": "new",
    "InstanceGroups": [
        _of_today(
            "head",
            "ml.m5.4xlarge",
            1,
            SlurmConfig={"NodeType": "Controller"},
            InstanceStorageConfigs=[
                {"EbsVolumeConfig": {"VolumeSizeInGB": 500}},
                {"FsxLustreConfig": {"DnsName": LUSTRE, "MountPath": "/fsx", "MountName": "1abcdefg"}},
                {"FsxOpenZfsConfig": {"DnsName": OPENZFS, "MountPath": "/home"}},
            ],
        ),
        _of_today("door", "ml.m5.4xlarge", 1, SlurmConfig={"NodeType": "Login"}),
        _of_today(
            "gpu",
            "ml.p5.48xlarge",
            4,
            SlurmConfig={"NodeType": "Compute", "PartitionNames": ["dev", "night"]},
            OnStartDeepHealthChecks=["InstanceStress", "InstanceConnectivity"],
            OverrideVpcConfig=VPC,
            ScheduledUpdateConfig={"ScheduleExpression": "cron(0 0 ? * SUN *)"},
            InstanceStorageConfigs=[
                {
                    "EbsVolumeConfig": {
                        "VolumeKmsKeyId": "arn:aws:kms:us-west-2:111122223333:key/1",
                        "RootVolume": True,
                    }
                }
            ],
        ),
        _of_today(
            "spot",
            "ml.g5.48xlarge",
            4,
            SlurmConfig={"NodeType": "Compute", "PartitionNames": ["spot"]},
            CapacityRequirements={"Spot": {}},
            ImageId="ami-0123456789abcdef0",
        ),
    ],
    "VpcConfig": VPC,
    "NodeRecovery": "Automatic",
    "NodeProvisioningMode": "Continuous",
    "ClusterRole": ROLE,
    "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Managed"}},
    "Tags": [{"Key": "größe", "Value": "日本"}],
    "TieredStorageConfig": {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20},
}

_DESCRIBED = {
    "ClusterArn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12",
    "ClusterName": "ml-cluster",
    "ClusterStatus": "InService",
    "CreationTime": "2026-02-01T10:00:00Z",
    "FailureMessage": "",
    "InstanceGroups": [
        {
            **{key: value for key, value in one.items() if key != "InstanceCount"},
            "CurrentCount": one["InstanceCount"],
            "TargetCount": one["InstanceCount"],
            "Status": "InService",
        }
        for one in _README
    ],
    "NodeRecovery": "Automatic",
    "VpcConfig": VPC,
}
_IN_CHINA = json.loads(json.dumps(_DESCRIBED).replace("arn:aws:", "arn:aws-cn:").replace("us-west-2", "cn-north-1"))

INPUTS: Dict[str, Input] = {
    "README of AWS's scripts": Input(
        _README, _TEMPLATE, ("--region", "us-west-2", "--name", "ml-cluster", *IN_VPC), (_NO_LOGIN,)
    ),
    "parameters as shipped": Input(None, _TEMPLATE, ("--region", "us-west-2", *NEW)),
    "Stability-AI/hyperpod": Input(
        None, parameters("login-group", ("worker-group-1", "dev")), ("--region", "us-west-2", *NEW)
    ),
    "automation script": Input(_BY_AUTOMATION, parameters("login-group", *_ITS_WORKERS, fsx_openzfs_dns_name=OPENZFS)),
    "automation script with two controllers": Input(
        _TWO_HEADS,
        parameters(
            "login-group",
            *_ITS_WORKERS,
            slurm_configurations={
                "slurm_database_secret_arn": "arn:aws:secretsmanager:us-west-2:111122223333:secret:rds-a1b2c3",
                "slurm_database_endpoint": "slurm.abc.us-west-2.rds.amazonaws.com",
                "slurm_shared_directory": "/fsx",
                "slurm_database_user": "dbadmin",
                "slurm_sns_arn": "arn:aws:sns:us-west-2:111122223333:failover",
            },
        ),
        notes=("slurm_database_endpoint: there is no accounting", "slurm_sns_arn: nobody is told of a failover"),
    ),
    "Terraform module": Input(
        _BY_TERRAFORM,
        parameters("login-nodes", ("compute-nodes", "dev"), ("login-nodes", "dev")),
        notes=("partition `dev` of group `login-nodes`: its nodes run no jobs here",),
    ),
    "all of today's API": Input(
        _BY_THE_API,
        notes=(
            "partition `night` of group `gpu`: it has one here",
            "SlurmConfigStrategy Managed: not in on_create mode nor beside NodeProvisioningMode",
        ),
    ),
    "describe-cluster": Input(_DESCRIBED, _TEMPLATE, (), (_NO_LOGIN,)),
    "describe-cluster of China": Input(
        _IN_CHINA,
        {**_TEMPLATE, "fsx_dns_name": "fs-12345678a90b01cde.fsx.cn-north-1.amazonaws.com.cn"},
        (),
        (_NO_LOGIN,),
    ),
}
"""What imports and is valid."""

ON_EKS = {
    "ClusterName": "eks",
    "Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:111122223333:cluster/x"}},
    "InstanceGroups": [group("w", "ml.p5.48xlarge", 2)],
    "VpcConfig": VPC,
}
"""What does not."""
