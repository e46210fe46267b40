"""A cluster against a configuration: each difference, how it takes effect, and the request."""

from __future__ import annotations

import copy
from datetime import datetime, timezone
from typing import Any

import pytest

from hyperpod_kit.aws import request_shape
from hyperpod_kit.cluster.update import IMPOSSIBLE, IN_PLACE, NEW_NODES, plan_update, require_aws_would_accept_update
from hyperpod_kit.errors import ClusterError, ConfigError

WANTED: dict[str, Any] = {
    "ClusterName": "demo",
    "NodeRecovery": "Automatic",
    "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1", "subnet-2"]},
    "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}},
    "InstanceGroups": [
        {
            "InstanceGroupName": "head",
            "InstanceType": "ml.m5.large",
            "InstanceCount": 1,
            "ExecutionRole": "arn:aws:iam::111122223333:role/node",
            "SlurmConfig": {"NodeType": "Controller"},
            "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-b/x/aaaa/", "OnInitComplete": "on_init_complete.sh"},
        },
        {
            "InstanceGroupName": "work",
            "InstanceType": "ml.p5.48xlarge",
            "InstanceCount": 4,
            "ExecutionRole": "arn:aws:iam::111122223333:role/node",
            "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["train"]},
            "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-b/x/aaaa/", "OnInitComplete": "on_init_complete.sh"},
        },
    ],
}


def live(**changes: Any) -> dict[str, Any]:
    """DescribeCluster's answer for a cluster that is what WANTED says, but for `changes` of the group `work`."""
    answer = copy.deepcopy(WANTED)
    answer["VpcConfig"]["Subnets"].reverse()
    for group in answer["InstanceGroups"]:
        group["TargetCount"] = group["CurrentCount"] = group.pop("InstanceCount")
    for key, value in changes.items():
        answer["InstanceGroups"][1][key] = value
    return answer


def test_nothing_to_change() -> None:
    found = plan_update(live(), WANTED)
    assert found.changes == () and found.can_api_do_all and found.destroyed_node_count == 0


@pytest.mark.parametrize(
    ("changes", "field", "how", "destroys"),
    [
        ({"TargetCount": 2}, "InstanceCount", IN_PLACE, 0),
        ({"TargetCount": 7}, "InstanceCount", IN_PLACE, 3),
        ({"InstanceType": "ml.p4d.24xlarge"}, "InstanceType", IMPOSSIBLE, 0),
        ({"SlurmConfig": {"NodeType": "Login"}}, "NodeType", IMPOSSIBLE, 0),
        ({"SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["dev"]}}, "PartitionNames", IN_PLACE, 0),
        ({"LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-b/x/bbbb/"}}, "LifeCycleConfig", NEW_NODES, 0),
        ({"ExecutionRole": "arn:aws:iam::111122223333:role/old"}, "ExecutionRole", IMPOSSIBLE, 0),
        ({"OverrideVpcConfig": {"SecurityGroupIds": ["sg-9"], "Subnets": ["subnet-9"]}}, None, None, 0),
        ({"ThreadsPerCore": 2}, None, None, 0),
        (
            {
                "InstanceStorageConfigs": [
                    {"FsxLustreConfig": {"DnsName": "fs-0123456789abcdef0.fsx", "MountName": "x"}}
                ]
            },
            "InstanceStorageConfigs",
            NEW_NODES,
            0,
        ),
        ({"InstanceStorageConfigs": []}, None, None, 0),
    ],
)
def test_a_group_that_differs(changes: dict[str, Any], field: str | None, how: str | None, destroys: int) -> None:
    found = plan_update(live(**changes), WANTED)
    if field is None:
        assert found.changes == ()  # said by AWS, not asked for by us
        return
    [change] = found.changes
    assert (change.where, change.field, change.how, found.destroyed_node_count) == ("work", field, how, destroys)
    assert found.can_api_do_all is (how != IMPOSSIBLE)


@pytest.mark.parametrize(
    ("key", "value", "how"),
    [
        ("NodeRecovery", "None", IN_PLACE),
        ("VpcConfig", {"SecurityGroupIds": ["sg-2"], "Subnets": []}, IMPOSSIBLE),
        ("Orchestrator", {"Slurm": {"SlurmConfigStrategy": "Managed"}}, IN_PLACE),
        ("Orchestrator", None, IN_PLACE),
        ("NodeProvisioningMode", "Continuous", IMPOSSIBLE),
    ],
)
def test_a_cluster_that_differs(key: str, value: Any, how: str) -> None:
    answer = live()
    answer[key] = value
    [change] = plan_update(answer, WANTED).changes
    assert (change.where, change.field, change.how) == ("cluster", key, how)


def test_groups_come_and_go_and_the_request_is_one_that_aws_takes() -> None:
    answer = live()
    answer["InstanceGroups"].append(
        {"InstanceGroupName": "old", "InstanceType": "ml.c5.large", "TargetCount": 2, "CurrentCount": 2}
    )
    answer["InstanceGroups"].pop(1)
    found = plan_update(answer, WANTED)
    assert [(change.where, change.note, change.destroys) for change in found.changes] == [
        ("work", "a new group", 0),
        ("old", "the group is removed", 2),
    ]
    assert found.request["InstanceGroupsToDelete"] == ["old"] and "VpcConfig" not in found.request
    assert request_shape.find_request_problems("sagemaker", "UpdateCluster", found.request) == []


def wanted(**changes: Any) -> dict[str, Any]:
    """WANTED with changes of its first group, the controller's."""
    request = copy.deepcopy(WANTED)
    request["InstanceGroups"][0].update(changes)
    return request


def test_the_controller_stays() -> None:
    gone = copy.deepcopy(WANTED)
    gone["InstanceGroups"].pop(0)
    renamed = wanted(InstanceGroupName="other")
    empty = wanted(InstanceCount=0)
    second = wanted(InstanceCount=2)
    for request, count in ((gone, 1), (renamed, 2), (empty, 1), (second, 1)):
        changes = plan_update(live(), request).changes
        assert [change.how for change in changes] == [IMPOSSIBLE] * count, changes
        assert "controller" in changes[0].note


def test_the_controller_of_the_legacy_file_stays_too() -> None:
    """Its group has no SlurmConfig: only the configuration knows which one it is."""
    answer, request = live(), wanted(InstanceCount=0)
    for side in (answer, request):
        side.pop("Orchestrator")
        for group in side["InstanceGroups"]:
            group.pop("SlurmConfig")
    assert [change.how for change in plan_update(answer, request).changes] == [IN_PLACE]
    assert [change.how for change in plan_update(answer, request, "head").changes] == [IMPOSSIBLE]


def test_from_the_legacy_file_to_slurm_config_and_on_to_continuous_provisioning() -> None:
    """AWS's page on the migration: one UpdateCluster brings SlurmConfig; there is no way back."""
    legacy = live()
    legacy.pop("Orchestrator")
    for group in legacy["InstanceGroups"]:
        group.pop("SlurmConfig")
    found = plan_update(legacy, WANTED)
    assert {change.field for change in found.changes} == {"Orchestrator", "NodeType"} and found.can_api_do_all
    back = copy.deepcopy(WANTED)
    back.pop("Orchestrator")
    assert not plan_update(live(), back).can_api_do_all
    continuous = {**copy.deepcopy(WANTED), "NodeProvisioningMode": "Continuous", "Orchestrator": {"Slurm": {}}}
    found = plan_update(live(), continuous)
    assert [(change.field, change.how) for change in found.changes] == [("NodeProvisioningMode", IN_PLACE)]
    assert found.request["Orchestrator"] == {"Slurm": {}} and found.request["NodeProvisioningMode"] == "Continuous"
    assert request_shape.find_request_problems("sagemaker", "UpdateCluster", found.request) == []


def test_fields_that_are_only_passed_on() -> None:
    """What the configuration hands to AWS as it is: compared where DescribeCluster tells it, sent where it can be."""
    request = {**wanted(ImageReleaseVersion="1.2.3"), "TieredStorageConfig": {"Mode": "Enable"}, "Tags": []}
    found = plan_update({**live(), "TieredStorageConfig": {"Mode": "Disable"}}, request)
    assert [(change.field, change.how) for change in found.changes] == [("TieredStorageConfig", IN_PLACE)]
    assert found.request["TieredStorageConfig"] == {"Mode": "Enable"}
    assert not {"Tags", "VpcConfig"} & set(found.request)


def test_what_is_to_be_replaced_and_what_there_will_be() -> None:
    request = wanted(LifeCycleConfig={"SourceS3Uri": "s3://sagemaker-b/x/cccc/", "OnInitComplete": "x.sh"})
    request["InstanceGroups"][1]["InstanceCount"] = 5
    found = plan_update(live(), request)
    assert found.groups_needing_replacement == ("head",) and found.desired == {"head": 1, "work": 5}


@pytest.mark.parametrize("status", ["Updating", "Failed", "SystemUpdating"])
def test_a_change_that_aws_would_turn_away_is_not_sent(status: str) -> None:
    found = plan_update(live(TargetCount=2), wanted())
    with pytest.raises(ClusterError, match=f"cluster demo is {status}: broke; AWS accepts changes only") as caught:
        require_aws_would_accept_update({**live(), "ClusterStatus": status, "FailureMessage": "broke"}, found)
    verb = "diagnose" if status == "Failed" else "wait"
    assert caught.value.hint == f"hyperpod-kit {verb} --cluster demo, then repeat the command"
    require_aws_would_accept_update({**live(), "ClusterStatus": "InService"}, found)
    require_aws_would_accept_update({**live(), "ClusterStatus": status, "NodeProvisioningMode": "Continuous"}, found)
    found.request["InstanceGroups"][0]["New"] = 1
    with pytest.raises(ConfigError) as refused:
        require_aws_would_accept_update({**live(), "ClusterStatus": "InService"}, found)
    assert "InstanceGroups[0].New" in refused.value.findings[0]


def wanted_worker(**fields: Any) -> dict[str, Any]:
    """What WANTED says, and `fields` of the group `work`."""
    request = copy.deepcopy(WANTED)
    request["InstanceGroups"][1].update(fields)
    return request


def test_several_types_and_patches_are_compared_in_the_form_that_describe_cluster_has() -> None:
    types = ["ml.p5.48xlarge", "ml.p5e.48xlarge"]
    date = datetime(2026, 12, 1, 3, tzinfo=timezone.utc)
    described = live(
        InstanceRequirements={"CurrentInstanceTypes": types[:1], "DesiredInstanceTypes": types},
        AutoPatchConfig={"PatchingStrategy": "WhenIdle", "CurrentPatchSchedule": {"NextPatchDate": date}},
    )
    patch = {"PatchingStrategy": "WhenIdle"}
    same = {"InstanceRequirements": {"InstanceTypes": types}, "AutoPatchConfig": patch}
    # Without a date AWS plans it; one that is known is none to change.
    assert plan_update(described, wanted_worker(**same)).changes == ()
    for text in ("2026-12-01T03:00:00Z", "2026-12-01T04:00:00+01:00"):
        dated = {**patch, "PatchSchedule": {"NextPatchDate": text}}
        assert plan_update(described, wanted_worker(**{**same, "AutoPatchConfig": dated})).changes == ()
    later = {**patch, "PatchSchedule": {"NextPatchDate": "2026-12-24"}}
    (change,) = plan_update(described, wanted_worker(**{**same, "AutoPatchConfig": later})).changes
    assert (change.field, change.how) == ("AutoPatchConfig", IN_PLACE)
    more = {"InstanceTypes": [*types, "ml.p5en.48xlarge"]}
    (change,) = plan_update(described, wanted_worker(**{**same, "InstanceRequirements": more})).changes
    assert (change.field, change.how) == ("InstanceRequirements", IN_PLACE)


def test_a_network_card_is_for_new_nodes_and_spot_for_another_group() -> None:
    (change,) = plan_update(live(), wanted_worker(NetworkInterface={"InterfaceType": "efa-only"})).changes
    assert (change.field, change.how) == ("NetworkInterface", NEW_NODES)
    (change,) = plan_update(live(), wanted_worker(CapacityRequirements={"Spot": {}})).changes
    assert (change.field, change.how) == ("CapacityRequirements", IMPOSSIBLE)
