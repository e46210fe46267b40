"""Tags, software updates, nodes that a caller adds, deletes, reboots: boto3, the real control plane, directories."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from hyperpod_rehearsal.platform.cluster_state import RehearsedNode
from hyperpod_rehearsal.platform.software_update import split_into_batches
from rehearsal_tests.test_continuous import SLURM, events, groups
from rehearsal_tests.test_control_plane import endpoint, group, nodes, sagemaker, wait, with_slurm
from rehearsal_tests.test_request_rules import refused
from tests.support.wait import until

__all__ = ["endpoint", "sagemaker"]


@pytest.fixture
def continuous(sagemaker, operations):
    operations.fleet.machines.answers = {
        "/opt/slurm/bin/scontrol -o show node": "NodeName=x State=DOWN SlurmdStartTime=2096-01-01T00:00:00"
    }
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=groups(2), **SLURM)
    wait(sagemaker)
    until(lambda: not operations.claimed_ids)
    return sagemaker


def target(sagemaker, name="gpu"):
    described = sagemaker.describe_cluster(ClusterName="demo")["InstanceGroups"]
    return next(entry["TargetCount"] for entry in described if entry["InstanceGroupName"] == name)


def workers(sagemaker):
    return {
        node["InstanceId"]: node["InstanceStatus"]["Status"]
        for node in nodes(sagemaker)
        if node["InstanceGroupName"] == "gpu"
    }


def test_tags_are_kept_listed_overwritten_and_removed(sagemaker):
    arn = sagemaker.create_cluster(
        ClusterName="demo", InstanceGroups=[group("gpu", 1)], Tags=[{"Key": "team", "Value": "größe 1"}]
    )["ClusterArn"]
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "größe 1"}]
    many = [{"Key": f"k{number:02}", "Value": str(number)} for number in range(48)]
    added = sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "team", "Value": "2"}, *many])["Tags"]
    assert len(added) == 49 and {"Key": "team", "Value": "2"} in added
    pages = sagemaker.get_paginator("list_tags").paginate(ResourceArn=arn, PaginationConfig={"PageSize": 50})
    assert [tag for page in pages for tag in page["Tags"]] == added
    refused(sagemaker.add_tags, "more than 50 tags", ResourceArn=arn, Tags=[{"Key": key, "Value": ""} for key in "ab"])
    refused(sagemaker.add_tags, "aws: prefixed", ResourceArn=arn, Tags=[{"Key": "AWS:x", "Value": ""}])
    sagemaker.delete_tags(ResourceArn=arn, TagKeys=["team", "never-there"])
    assert sagemaker.add_tags(ResourceArn=arn, Tags=[])["Tags"] == [tag for tag in added if tag["Key"] != "team"]
    refused(sagemaker.list_tags, "does not exist", ResourceArn=arn[:-1] + ("1" if arn[-1] == "0" else "0"))


def test_deleted_nodes_leave_with_their_groups_count(sagemaker, operations, endpoint):
    with_slurm(operations.store, endpoint)
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("head", 1), group("gpu", 3)])
    wait(sagemaker)
    head, first, second, third = (node["InstanceId"] for node in nodes(sagemaker))
    operations.try_to_claim_node(operations.clusters["demo"].nodes[third])
    response = sagemaker.batch_delete_cluster_nodes(
        ClusterName="demo", NodeIds=[head, first, third, "i-0123456789abcdef0"]
    )
    assert response["Successful"] == [first]
    assert [(failure["NodeId"], failure["Code"]) for failure in response["Failed"]] == [
        (head, "InvalidNodeStatus"),
        (third, "NodeIdInUse"),
        ("i-0123456789abcdef0", "NodeIdNotFound"),
    ]
    assert target(sagemaker) == 2
    until(lambda: set(workers(sagemaker)) == {second, third})
    # An update to the count that is there takes nobody away, whichever places are empty; the next one fills them.
    for count in (2, 3):
        sagemaker.update_cluster(ClusterName="demo", InstanceGroups=[group("gpu", count)])
        wait(sagemaker)
        assert {second, third} <= set(workers(sagemaker)) and len(workers(sagemaker)) == count
    cluster = operations.clusters["demo"]
    assert [node.index for node in cluster.nodes_in_group("gpu")] == [0, 1, 2]


def test_nodes_are_added_once_for_a_token_and_followed_by_their_logical_ids(continuous, operations):
    request = {
        "ClusterName": "demo",
        "ClientToken": "once",
        "NodesToAdd": [
            {"InstanceGroupName": "gpu", "IncrementTargetCountBy": 2},
            {"InstanceGroupName": "other", "IncrementTargetCountBy": 3},
            {"InstanceGroupName": "gpu", "IncrementTargetCountBy": 1, "InstanceTypes": ["ml.c5.xlarge"]},
            {"InstanceGroupName": "gpu", "IncrementTargetCountBy": 1, "AvailabilityZones": ["us-east-1c"]},
        ],
    }
    response = continuous.batch_add_cluster_nodes(**request)
    added = [entry["NodeLogicalId"] for entry in response["Successful"]]
    assert len(added) == 2 and {entry["InstanceGroupName"] for entry in response["Successful"]} == {"gpu"}
    assert [(failure["ErrorCode"], failure["FailedCount"]) for failure in response["Failed"]] == [
        ("InstanceGroupNotFound", 3),
        ("IncompatibleInstanceTypes", 1),
        ("IncompatibleAvailabilityZones", 1),
    ]

    def status(logical_id):
        details = continuous.describe_cluster_node(ClusterName="demo", NodeLogicalId=logical_id)["NodeDetails"]
        return details["InstanceStatus"]["Status"]

    until(lambda: [status(logical_id) for logical_id in added] == ["Running", "Running"])
    again = continuous.batch_add_cluster_nodes(**request)
    assert [(entry["NodeLogicalId"], entry["Status"]) for entry in again["Successful"]] == [
        (logical_id, "Running") for logical_id in added
    ]
    assert (target(continuous), len(workers(continuous))) == (4, 4)
    listed = continuous.list_cluster_nodes(ClusterName="demo", IncludeNodeLogicalIds=True)["ClusterNodeSummaries"]
    assert set(added) < {node["NodeLogicalId"] for node in listed}
    assert not any("NodeLogicalId" in node for node in nodes(continuous))
    until(lambda: not operations.claimed_ids)
    deleted = continuous.batch_delete_cluster_nodes(ClusterName="demo", NodeLogicalIds=[*added, "node-other"])
    assert deleted["SuccessfulNodeLogicalIds"] == added and "Successful" not in deleted
    assert [failure["Code"] for failure in deleted["FailedNodeLogicalIds"]] == ["NodeIdNotFound"]
    until(lambda: len(workers(continuous)) == 2)


def test_nodes_can_be_added_to_continuous_clusters_only(sagemaker):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 1)])
    wait(sagemaker)
    refused(
        sagemaker.batch_add_cluster_nodes,
        "only supported for clusters with NodeProvisioningMode",
        ClusterName="demo",
        NodesToAdd=[{"InstanceGroupName": "gpu", "IncrementTargetCountBy": 1}],
    )


def test_reboot_replacement_and_scaling_leave_events(continuous, operations):
    first, second = workers(continuous)
    continuous.batch_reboot_cluster_nodes(ClusterName="demo", NodeIds=[first])
    continuous.batch_replace_cluster_nodes(ClusterName="demo", NodeIds=[second])
    until(lambda: second not in workers(continuous) and set(workers(continuous).values()) == {"Running"})
    until(lambda: not operations.claimed_ids)
    continuous.update_cluster(ClusterName="demo", InstanceGroups=groups(1))
    until(lambda: len(workers(continuous)) == 1 and not operations.claimed_ids)

    def descriptions(**filters):
        return [event["Description"] for event in events(continuous, SortOrder="Ascending", **filters)]

    assert [text for text in descriptions(NodeId=first) if "Reboot" in text] == [
        f"Reboot of instance {first} has Started: asked for: reboot",
        f"Reboot of instance {first} has Succeeded: asked for: reboot",
    ]
    [replaced] = [text for text in descriptions(NodeId=second) if "replaced" in text]
    assert replaced.endswith("asked for: replace")
    assert descriptions(InstanceGroupName="gpu", ResourceType="InstanceGroup") == [
        "Scaling of InstanceGroup gpu from 2 to 1 instances has Started"
    ]
    assert any("was deleted" in text for text in descriptions(InstanceGroupName="gpu", ResourceType="Instance"))


def test_a_software_update_gives_every_instance_a_fresh_root(sagemaker, operations):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("head", 1), group("gpu", 2)])
    wait(sagemaker)
    ids = [node["InstanceId"] for node in nodes(sagemaker)]
    machines = operations.fleet.machines
    for instance_id in ids:
        (machines.root(instance_id) / "left-by-a-user").touch()
    sagemaker.update_cluster_software(ClusterName="demo", InstanceGroups=[{"InstanceGroupName": "gpu"}])
    assert wait(sagemaker)["ClusterStatus"] == "InService"
    assert [node["InstanceId"] for node in nodes(sagemaker)] == ids
    assert [(machines.root(each) / "left-by-a-user").exists() for each in ids] == [True, False, False]
    assert ["LastSoftwareUpdateTime" in node for node in nodes(sagemaker)] == [False, True, True]
    assert {node["InstanceStatus"]["Status"] for node in nodes(sagemaker)} == {"Running"}
    assert [machines.started.count(each) for each in ids] == [1, 2, 2]


def test_a_software_update_that_fails_says_why_and_goes_no_further(sagemaker, operations):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 3)])
    wait(sagemaker)
    operations.fleet.machines.agent_report = lambda config: ("Failed", "on_create.sh exited 1: no such package")
    sagemaker.update_cluster_software(
        ClusterName="demo",
        DeploymentConfig={"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1}}},
    )
    cluster = wait(sagemaker)
    assert cluster["ClusterStatus"] == "InService" and "no such package" in cluster["FailureMessage"]
    assert [node["InstanceStatus"]["Status"] for node in nodes(sagemaker)] == ["Failure", "Running", "Running"]
    with pytest.raises(ClientError, match="Exactly one of NodeId and NodeLogicalId"):
        sagemaker.describe_cluster_node(ClusterName="demo")
    assert not operations.claimed_ids


@pytest.mark.parametrize(
    "kind, value, sizes",
    [("INSTANCE_COUNT", 2, [2, 2, 1]), ("CAPACITY_PERCENTAGE", 40, [2, 2, 1]), ("CAPACITY_PERCENTAGE", 1, [1] * 5)],
)
def test_batches_of_a_rolling_update(kind, value, sizes):
    five = [RehearsedNode(f"i-{number}", "gpu", "ml.m5.large", number, "10.1.0.1") for number in range(5)]
    policy = {"MaximumBatchSize": {"Type": kind, "Value": value}}
    assert [len(batch) for batch in split_into_batches(five, policy)] == sizes
    assert split_into_batches(five, None) == [five] and split_into_batches([], None) == []
