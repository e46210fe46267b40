"""What AWS gets: compared field by field, and held against the service model of the installed botocore."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.aws.request_shape import find_request_problems
from hyperpod_kit.config.emit import build_create_cluster_request, provisioning_parameters_json_if_on_create
from hyperpod_kit.config.importing.from_aws import import_configuration
from hyperpod_kit.config.load import load
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.config.settings.sourced import SourcedMount
from hyperpod_kit.model.cluster import AutoPatch, InstanceGroup, ScheduledUpdate, TieredStorage, UpdateRollout
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
URI = "s3://sagemaker-hyperpod-kit-demo/hyperpod-kit/demo/0123456789abcdef/"
ROLE = "arn:aws:iam::111122223333:role/HyperPodKitDemo"


def configuration(mode: str, **changes: Any) -> Settings:
    config = load(EXAMPLE)
    return replace(config, cluster=replace(config.cluster, lifecycle_mode=mode, **changes))


def test_on_create_leaves_everything_to_our_script() -> None:
    request = build_create_cluster_request(configuration("on_create"), URI)
    assert request == {
        "ClusterName": "demo",
        "InstanceGroups": [
            {
                "InstanceGroupName": name,
                "InstanceType": kind,
                "InstanceCount": count,
                "ExecutionRole": ROLE,
                "LifeCycleConfig": {"SourceS3Uri": URI, "OnCreate": "on_create.sh"},
            }
            for name, kind, count in (("controller-machine", "ml.c5.xlarge", 1), ("worker-group", "ml.c5.4xlarge", 3))
        ],
        "NodeRecovery": "Automatic",
        "VpcConfig": {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": ["subnet-0123456789abcdef0"]},
    }
    assert find_request_problems("sagemaker", "CreateCluster", request) == []


def test_on_init_complete_lets_hyperpod_make_slurm_and_lustre() -> None:
    request = build_create_cluster_request(configuration("on_init_complete"), URI)
    controller, worker = request["InstanceGroups"]
    assert controller["LifeCycleConfig"] == {"SourceS3Uri": URI, "OnInitComplete": "on_init_complete.sh"}
    assert controller["SlurmConfig"] == {"NodeType": "Controller"}
    assert worker["SlurmConfig"] == {"NodeType": "Compute", "PartitionNames": ["train"]}
    assert worker["InstanceStorageConfigs"] == [
        {
            "FsxLustreConfig": {
                "DnsName": "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com",
                "MountName": "abcdefgh",
                "MountPath": "/fsx",
            }
        }
    ]
    # Merge: our hooks in slurm.conf are no drift.
    assert request["Orchestrator"] == {"Slurm": {"SlurmConfigStrategy": "Merge"}}
    assert find_request_problems("sagemaker", "CreateCluster", request) == []


def test_a_login_group_and_tags() -> None:
    config = configuration("on_init_complete")
    groups = (*config.cluster.groups, InstanceGroup("login", "ml.c5.large", 1, "login"))
    config = replace(config, cluster=replace(config.cluster, groups=groups, tags=(("team", "vision"),)))
    request = build_create_cluster_request(config, URI)
    assert request["InstanceGroups"][2]["SlurmConfig"] == {"NodeType": "Login"}
    assert request["Tags"] == [{"Key": "team", "Value": "vision"}]
    assert find_request_problems("sagemaker", "CreateCluster", request) == []


def test_ami_only_has_no_lifecycle_script() -> None:
    request = build_create_cluster_request(configuration("ami_only"), "")
    assert all("LifeCycleConfig" not in group and "SlurmConfig" in group for group in request["InstanceGroups"])
    assert find_request_problems("sagemaker", "CreateCluster", request) == []


def test_the_legacy_file_has_awss_keys_only() -> None:
    config = configuration("on_create")
    passthrough = {"slurm_configurations": {"a": 1}}
    config = replace(config, parameters=replace(config.parameters, login_group="login", passthrough=passthrough))
    text = provisioning_parameters_json_if_on_create(config)
    assert text is not None
    assert json.loads(text) == {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "controller-machine",
        "login_group": "login",
        "worker_groups": [{"instance_group_name": "worker-group", "partition_name": "train"}],
        "fsx_dns_name": "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com",
        "fsx_mountname": "abcdefgh",
        "slurm_configurations": {"a": 1},
    }


@pytest.mark.parametrize("mode", ["on_init_complete", "ami_only"])
def test_the_legacy_file_is_not_written_beside_slurm_config(mode: str) -> None:
    assert provisioning_parameters_json_if_on_create(configuration(mode)) is None


def test_hyperpod_makes_one_fsx_of_each_kind_in_a_group_and_never_in_on_create() -> None:
    zfs = OpenZfsMount("homes", "/home", "fs-0123456789abcdef1.fsx.us-east-1.amazonaws.com")
    other = replace(zfs, name="other", path="/other", export="/fsx/vol1")
    second = LustreMount("scratch", "/fsx2", "fs-0123456789abcdef2.fsx.us-east-1.amazonaws.com", "second")
    for mode, theirs in (("on_create", set()), ("on_init_complete", {"fsx", "homes"}), ("ami_only", {"fsx", "homes"})):
        config = configuration(mode)
        more = [SourcedMount(mount, "") for mount in (replace(zfs, groups=("worker-group",)), other, second)]
        config = replace(config, sourced_mounts=(*config.sourced_mounts, *more))
        assert {mount.name for mount in config.node_config().mounts if mount.platform} == theirs
        controller, worker = (
            group.get("InstanceStorageConfigs", [])
            for group in build_create_cluster_request(config, URI)["InstanceGroups"]
        )
        assert [next(iter(entry)) for entry in controller] == ["FsxLustreConfig"] * bool(theirs)
        assert [next(iter(entry)) for entry in worker] == ["FsxLustreConfig", "FsxOpenZfsConfig"] * bool(theirs)
    assert worker[1] == {"FsxOpenZfsConfig": {"DnsName": zfs.dns_name, "MountPath": "/home"}}


def test_capacity_patches_and_several_types_are_fields_of_the_group() -> None:
    config = configuration("on_init_complete", tiered_storage=TieredStorage("Enable", 20))
    controller, worker = config.cluster.groups
    worker = replace(
        worker,
        instance_type="",
        instance_types=("ml.p5.48xlarge", "ml.p5e.48xlarge"),
        capacity="Spot",
        network_interface="efa-only",
        auto_patch=AutoPatch("WhenIdle", "2026-12-01T03:00:00Z", 3600, UpdateRollout("10%", "1", 60, ("nodes",))),
        scheduled_update=ScheduledUpdate("cron(0 3 ? * SUN *)", UpdateRollout("2")),
    )
    config = replace(config, cluster=replace(config.cluster, groups=(controller, worker)))
    request = build_create_cluster_request(config, URI)
    entry = request["InstanceGroups"][1]
    assert "InstanceType" not in entry
    assert {key: entry[key] for key in entry if key.endswith(("Requirements", "Interface", "Config"))} == {
        "InstanceRequirements": {"InstanceTypes": ["ml.p5.48xlarge", "ml.p5e.48xlarge"]},
        "CapacityRequirements": {"Spot": {}},
        "NetworkInterface": {"InterfaceType": "efa-only"},
        "AutoPatchConfig": {
            "PatchingStrategy": "WhenIdle",
            "PatchSchedule": {"NextPatchDate": "2026-12-01T03:00:00Z"},
            "IdleWaitWindowInSeconds": 3600,
            "DeploymentConfig": {
                "RollingUpdatePolicy": {
                    "MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 10},
                    "RollbackMaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1},
                },
                "WaitIntervalInSeconds": 60,
                "AutoRollbackConfiguration": [{"AlarmName": "nodes"}],
            },
        },
        "ScheduledUpdateConfig": {
            "ScheduleExpression": "cron(0 3 ? * SUN *)",
            "DeploymentConfig": {"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 2}}},
        },
        "LifeCycleConfig": {"SourceS3Uri": URI, "OnInitComplete": "on_init_complete.sh"},
        "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["train"]},
    }
    assert request["TieredStorageConfig"] == {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20}
    assert find_request_problems("sagemaker", "CreateCluster", request) == []
    # And back again, from the request and from how DescribeCluster tells the same.
    keys = import_configuration(request, None).values["hyperpod_kit"]["cluster"]
    assert keys["tiered_storage"] == {"mode": "Enable", "memory_percent": 20}
    assert keys["instance_groups"][1] == {
        "name": "worker-group",
        "instance_types": ["ml.p5.48xlarge", "ml.p5e.48xlarge"],
        "count": 3,
        "capacity": "Spot",
        "network_interface": "efa-only",
        "auto_patch": {
            "strategy": "WhenIdle",
            "next_patch_date": "2026-12-01T03:00:00Z",
            "idle_wait_seconds": 3600,
            "rollout": {"batch": "10%", "rollback_batch": "1", "pause_seconds": 60, "alarms": ["nodes"]},
        },
        "scheduled_update": {"schedule": "cron(0 3 ? * SUN *)", "rollout": {"batch": "2"}},
    }
    date = datetime(2026, 12, 1, 3, tzinfo=timezone.utc)
    entry["AutoPatchConfig"]["CurrentPatchSchedule"] = {"NextPatchDate": date}
    del entry["AutoPatchConfig"]["PatchSchedule"]
    entry["InstanceRequirements"] = {"DesiredInstanceTypes": entry["InstanceRequirements"]["InstanceTypes"]}
    assert import_configuration(request, None).values["hyperpod_kit"]["cluster"] == keys
