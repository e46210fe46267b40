"""From what AWS knows back to a configuration: the same request comes out again, and nothing is lost in silence."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.emit import build_create_cluster_request, provisioning_parameters_json_if_on_create
from hyperpod_kit.config.importing.from_aws import first_lifecycle_scripts_uri, import_configuration
from hyperpod_kit.config.settings.findings import select_errors
from hyperpod_kit.config.starting.init_answers import Answers
from hyperpod_kit.config.starting.starter import copy_with_answers_and_defaults
from hyperpod_kit.config.validate import validate
from hyperpod_kit.errors import ConfigError
from tests.unit.config.combinations import COMBINATIONS, URI, allowed, settings_of

ROOT = Path(__file__).parents[3]
ROLE = "arn:aws:iam::111122223333:role/R"
ARN = "arn:aws:sagemaker:eu-west-1:111122223333:cluster/abcdefghijkl"
LEGACY = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "head",
    "worker_groups": [{"instance_group_name": "gpu", "partition_name": "p5"}],
    "login_group": "",
    "fsx_dns_name": "fs-0123456789abcdef0.fsx.eu-west-1.amazonaws.com",
    "fsx_mountname": "abcdefgh",
}
"""As AWS's template is filled in."""


ODD: tuple[Any, ...] = (None, 7, "x", [{}], {"x": [None]})


def group(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "InstanceGroupName": name,
        "InstanceType": "ml.c5.xlarge",
        "InstanceCount": 1,
        "ExecutionRole": ROLE,
        "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-mine/lifecycle/", "OnCreate": "on_create.sh"},
        **fields,
    }


def test_every_request_comes_back_as_it_was() -> None:
    for chosen in COMBINATIONS:
        if not allowed(chosen) or chosen["recovery"] != "Automatic":
            continue
        settings = settings_of(chosen)[0]
        request = build_create_cluster_request(settings, URI)
        legacy = provisioning_parameters_json_if_on_create(settings)
        found = import_configuration(request, json.loads(legacy) if legacy else None)
        again, problems = decode_settings(copy_with_answers_and_defaults(found.values, Answers(region="us-east-1")))
        assert problems == [] and select_errors(validate(again)) == [], (chosen, problems, validate(again))
        assert build_create_cluster_request(again, URI) == request, chosen
        assert all("the lifecycle scripts at s3://" in note for note in found.notes), (chosen, found.notes)


def test_a_described_cluster_with_the_file_of_aws() -> None:
    """What DescribeCluster adds (states, counts, dates) is nobody's wish and no loss."""
    live = {
        "ClusterArn": ARN,
        "ClusterName": "old",
        "ClusterStatus": "InService",
        "CreationTime": "2026-01-01",
        "InstanceGroups": [
            {**group("head"), "CurrentCount": 1, "TargetCount": 1, "Status": "InService", "CurrentImageId": "ami-1"},
            {**group("gpu", ExecutionRole=ROLE + "2"), "CurrentCount": 3, "TargetCount": 4, "MinCount": 0},
        ],
        "NodeRecovery": "Automatic",
        "VpcConfig": {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": ["subnet-0123456789abcdef0"]},
        "AutoScaling": {"Mode": "Disable", "Status": "InService"},
    }
    for one in live["InstanceGroups"]:
        del one["InstanceCount"]  # type: ignore[attr-defined]
    assert first_lifecycle_scripts_uri(live) == "s3://sagemaker-mine/lifecycle/"
    found = import_configuration(live, LEGACY)
    settings, problems = decode_settings(copy_with_answers_and_defaults(found.values, Answers()))
    assert problems == [] and select_errors(validate(settings)) == []
    cluster = settings.cluster
    assert (cluster.name, cluster.region, cluster.lifecycle_mode) == ("old", "eu-west-1", "on_create")
    assert [(one.name, one.role, one.count, one.partition, one.execution_role) for one in cluster.groups] == [
        ("head", "controller", 1, None, None),
        ("gpu", "compute", 4, "p5", ROLE + "2"),
    ]
    assert [mount.path for mount in settings.mounts] == ["/fsx"] and settings.bundle.bucket == "sagemaker-mine"
    assert settings.parameters.login_group is None
    assert found.notes == (
        "AutoScaling: CreateCluster does not take it like this",
        "the lifecycle scripts at s3://sagemaker-mine/lifecycle/: the bundle takes their place",
    )


def test_the_file_of_aws_alone_gives_the_groups_their_names() -> None:
    found = import_configuration(None, {**LEGACY, "login_group": "door", "of_tomorrow": 1})
    vpc: Any = {"security_groups": ("sg-0123456789abcdef0",), "subnets": ("subnet-0123456789abcdef0",)}
    answers = Answers(name="x", region="eu-west-1", execution_role=ROLE, worker_type="ml.p5.48xlarge", workers=8, **vpc)
    settings, problems = decode_settings(copy_with_answers_and_defaults(found.values, answers))
    assert problems == [] and validate(settings) == []
    assert [(one.name, one.role, one.instance_type, one.count) for one in settings.cluster.groups] == [
        ("head", "controller", "ml.c5.xlarge", 1),
        ("door", "login", "ml.c5.xlarge", 1),
        ("gpu", "compute", "ml.p5.48xlarge", 8),
    ]
    assert found.notes == ("`of_tomorrow` of provisioning_parameters.json: unknown",)


@pytest.mark.parametrize(
    ("cluster", "note"),
    [
        ([group("a", SlurmConfig={"NodeType": "Compute"})], "no partition of group `a` is known"),
        ([group("a"), {**group("b"), "LifeCycleConfig": None}], "lifecycle modes differ from group to group"),
        ([group("a", LifeCycleConfig={"OnCreate": "x"})], "LifeCycleConfig of group `a` is incomplete"),
        ([group("a", LifeCycleConfig={})], "LifeCycleConfig of group `a` is incomplete"),
        (
            [group("a", LifeCycleConfig={"SourceS3Uri": "s3://x/", "OnCreate": "x", "OnInitComplete": "y"})],
            "LifeCycleConfig of group `a` has both OnCreate and OnInitComplete, which AWS refuses",
        ),
        ([group("a", OfTomorrow=1)], "group `a`: OfTomorrow: CreateCluster does not take it like this"),
        (
            [group("a", InstanceStorageConfigs=[{"OfTomorrow": {}}])],
            "InstanceStorageConfigs.OfTomorrow: there is no key",
        ),
        (
            {"InstanceGroups": [group("a")], "Orchestrator": {"Slurm": {"OfTomorrow": 1}}},
            "Orchestrator.Slurm.OfTomorrow: there is no key for it",
        ),
        (
            [group("a", SlurmConfig={"NodeType": "Compute", "PartitionNames": ["dev", "night"]})],
            "partition `night` of group `a`: it has one here",
        ),
        (
            {
                "InstanceGroups": [group("a")],
                "NodeProvisioningMode": "Continuous",
                "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}},
            },
            "SlurmConfigStrategy Merge: not in on_create mode nor beside NodeProvisioningMode",
        ),
    ],
)
def test_what_cannot_be_said_is_named(cluster: Any, note: str) -> None:
    found = import_configuration(copy.deepcopy(cluster), None)
    assert any(note in one for one in found.notes), found.notes
    copy_with_answers_and_defaults(found.values, Answers())


def test_the_login_group_of_awss_template_is_left_out_where_there_is_none() -> None:
    parameters = {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "head",
        "login_group": "my-login-group",
        "worker_groups": [{"instance_group_name": "a", "partition_name": "dev"}],
    }
    found = import_configuration([group("head"), group("a")], parameters)
    assert "login_group" not in found.values and found.notes[0] == (
        "login_group `my-login-group`: the cluster has no instance group of that name"
    )
    assert (
        import_configuration([group("head"), group("my-login-group")], parameters).values["login_group"]
        == "my-login-group"
    )


def test_two_file_systems_and_groups_that_have_one_only() -> None:
    lustre = {"DnsName": "fs-0123456789abcdef0.fsx.eu-west-1.amazonaws.com", "MountName": "abc"}
    other = {**lustre, "DnsName": lustre["DnsName"].replace("cdef0", "cdef1")}
    groups = [
        group("head", InstanceStorageConfigs=[{"FsxLustreConfig": lustre}]),
        group("gpu", InstanceStorageConfigs=[{"FsxLustreConfig": other}, {"EbsVolumeConfig": {"VolumeSizeInGB": 9}}]),
    ]
    found = import_configuration(groups, {**LEGACY, "fsx_dns_name": lustre["DnsName"], "fsx_mountname": "abc"})
    mounts = found.values["hyperpod_kit"]["mounts"]
    assert [(mount["name"], mount["path"], mount["groups"]) for mount in mounts] == [
        ("fsx", "/fsx", ["head"]),
        ("fsx-2", "/fsx", ["gpu"]),
    ]
    # Once, not a second time by AWS's short form.
    assert "fsx_dns_name" not in found.values and "fsx_mountname" not in found.values
    assert found.values["hyperpod_kit"]["cluster"]["instance_groups"][1]["ebs_gib"] == 9


@pytest.mark.parametrize(
    ("cluster", "parameters", "message"),
    [
        ({"a": 1}, None, "this is not a cluster"),
        ([1], None, "this is not a cluster"),
        ("x", None, "this is not a cluster"),
        ({"InstanceGroups": {}}, None, "this is not a cluster"),
        ({"InstanceGroups": [], "Orchestrator": {"Eks": {"ClusterArn": "x"}}}, None, "orchestrated by EKS"),
        (None, [], "holds no object"),
        (None, {"hyperpod_kit": {}}, "a configuration of hyperpod-kit already"),
    ],
)
def test_what_is_no_cluster(cluster: Any, parameters: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        import_configuration(cluster, parameters)


def test_odd_values_never_break_it() -> None:
    """Each value of a request in turn by something else: values and findings, or one clear error; no exception."""
    chosen = next(one for one in COMBINATIONS if one["storage"] == "all" and one["extras"] and allowed(one))
    full = build_create_cluster_request(settings_of(chosen)[0], URI)

    def places(value: Any, key_path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [key_path, *[place for key, item in pairs for place in places(item, (*key_path, key))]]

    for key_path in places(full)[1:]:
        for odd in ODD:
            request = copy.deepcopy(full)
            inner: Any = request
            for key in key_path[:-1]:
                inner = inner[key]
            inner[key_path[-1]] = odd
            try:
                found = import_configuration(request, None)
                values = copy_with_answers_and_defaults(found.values, Answers(region="us-east-1"))
            except ConfigError:
                continue
            validate(decode_settings(values)[0])
    for key_path in places(LEGACY)[1:]:
        for odd in ODD:
            legacy: Any = copy.deepcopy(LEGACY)
            inner = legacy
            for key in key_path[:-1]:
                inner = inner[key]
            inner[key_path[-1]] = odd
            for cluster in (None, [group("head"), group("gpu")]):
                try:
                    values = copy_with_answers_and_defaults(import_configuration(cluster, legacy).values, Answers())
                except ConfigError:
                    continue
                validate(decode_settings(values)[0])


def test_the_listing_of_awss_own_announcement_gives_a_mode_that_mounts() -> None:
    """Its groups say `lifecycleConfig`, and one type is without `ml.`: what to correct is named, nothing is lost."""
    listing = {
        "InstanceGroups": [
            {
                "InstanceGroupName": name,
                "InstanceType": kind,
                "InstanceCount": count,
                "lifecycleConfig": {"SourceS3Uri": "s3://sagemaker-mine/lifecycle/", "OnCreate": "on_create.sh"},
                "ExecutionRole": ROLE,
                "ThreadsPerCore": 1,
            }
            for name, kind, count in (("controller-group", "ml.m5.xlarge", 1), ("worker-group", "trn1.32xlarge", 4))
        ]
    }
    found = import_configuration(listing, None)
    kit = found.values["hyperpod_kit"]
    assert kit["cluster"]["lifecycle_mode"] == "on_create" and kit["bundle"]["bucket"] == "sagemaker-mine"
    assert "`lifecycleConfig` of group `worker-group` as it is spelled: AWS says LifeCycleConfig" in found.notes
    assert "`InstanceType` trn1.32xlarge of group `worker-group` as it is spelled: AWS says ml.trn1.32xlarge" in (
        found.notes
    )
    assert (found.values["controller_group"], found.values["worker_groups"]) == (
        "controller-group",
        [{"instance_group_name": "worker-group", "partition_name": "worker-group"}],
    )
    answers = Answers(
        name="demo",
        region="us-west-2",
        subnets=("subnet-0123456789abcdef0",),
        security_groups=("sg-0123456789abcdef0",),
    )
    assert select_errors(validate(decode_settings(copy_with_answers_and_defaults(found.values, answers))[0])) == [], (
        "nothing is left to be mended"
    )


@pytest.mark.parametrize(
    ("names", "controller", "login"),
    [
        (("controller-machine", "login", "gpu"), "controller-machine", "login"),
        (("Controller", "gpu"), "Controller", None),
        (("controller-a", "controller-b", "gpu"), None, None),
        (("machines", "gpu"), None, None),
    ],
)
def test_names_say_who_is_who_where_nothing_else_does_and_they_say_it_once(
    names: tuple[str, ...], controller: str | None, login: str | None
) -> None:
    values = import_configuration([group(name) for name in names], None).values
    assert (values.get("controller_group"), values.get("login_group")) == (controller, login)


def test_what_awss_file_says_of_roles_counts_more_than_names() -> None:
    legacy = {**LEGACY, "controller_group": "gpu-0"}
    values = import_configuration([group("gpu-0"), group("controller-group")], legacy).values
    assert values["controller_group"] == "gpu-0"


def test_the_input_of_several_controllers_as_aws_documents_it() -> None:
    """AWS's pages "Preparing and uploading lifecycle scripts" and "Creating a SageMaker HyperPod cluster"."""
    arn = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:rds-a1b2c3"
    slurm = {
        "slurm_database_secret_arn": arn,
        "slurm_database_endpoint": "slurm.abc.eu-west-1.rds.amazonaws.com",
        "slurm_shared_directory": "/fsx",
        "slurm_database_user": "alice",
        "slurm_sns_arn": "arn:aws:sns:eu-west-1:111122223333:failover",
    }
    legacy = {**LEGACY, "slurm_configurations": slurm}
    request = {
        "ClusterName": "old",
        "InstanceGroups": [group("head", InstanceCount=2, ThreadsPerCore=1), group("gpu", ExecutionRole=ROLE + "2")],
        "VpcConfig": {
            "SecurityGroupIds": ["sg-0123456789abcdef0"],
            "Subnets": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
        },
    }
    for cluster in (request, None):
        vpc: Any = {"security_groups": ("sg-0123456789abcdef0",), "subnets": ("subnet-0123456789abcdef0",)}
        found = import_configuration(cluster, legacy)
        answers = Answers(name="old", region="eu-west-1", execution_role=ROLE, **({} if cluster else vpc))
        settings, problems = decode_settings(copy_with_answers_and_defaults(found.values, answers))
        assert problems == [] and select_errors(validate(settings)) == []
        assert (settings.controller_count, settings.cluster.lifecycle_mode) == (2, "on_create")
        assert settings.slurm_state_mount_name and settings.node_config().controllers == 2
        assert settings.steps.accounting is None
        assert json.loads(provisioning_parameters_json_if_on_create(settings) or "")["slurm_configurations"] == slurm
        notes = " ".join(found.notes)
        assert "below /fsx/aws/hyperpod is not taken over" in notes and "nobody is told of a failover" in notes
        assert "slurm_database_endpoint: there is no accounting" in notes
