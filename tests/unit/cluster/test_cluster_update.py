"""A cluster against a configuration: each difference, how it takes effect, and the request."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hyperpod_kit.aws import request_shape
from hyperpod_kit.cluster.update import IMPOSSIBLE, IN_PLACE, NEW_NODES, plan

WANTED: dict[str, Any] = {
    "ClusterName": "demo",
    "NodeRecovery": "Automatic",
    "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1", "subnet-2"]},
    "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}},
    "InstanceGroups": [
        {"InstanceGroupName": "head", "InstanceType": "ml.m5.large", "InstanceCount": 1,
         "ExecutionRole": "arn:aws:iam::111122223333:role/node", "SlurmConfig": {"NodeType": "Controller"},
         "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-b/x/aaaa/", "OnInitComplete": "on_init_complete.sh"}},
        {"InstanceGroupName": "work", "InstanceType": "ml.p5.48xlarge", "InstanceCount": 4,
         "ExecutionRole": "arn:aws:iam::111122223333:role/node",
         "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["train"]},
         "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-b/x/aaaa/", "OnInitComplete": "on_init_complete.sh"}},
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
    found = plan(live(), WANTED)
    assert found.changes == () and found.possible and found.destroys == 0


@pytest.mark.parametrize(("changes", "field", "how", "destroys"), [
    ({"TargetCount": 2}, "InstanceCount", IN_PLACE, 0),
    ({"TargetCount": 7}, "InstanceCount", IN_PLACE, 3),
    ({"InstanceType": "ml.p4d.24xlarge"}, "InstanceType", IMPOSSIBLE, 0),
    ({"SlurmConfig": {"NodeType": "Login"}}, "NodeType", IMPOSSIBLE, 0),
    ({"SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["dev"]}}, "PartitionNames", IN_PLACE, 0),
    ({"LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-b/x/bbbb/"}}, "LifeCycleConfig", NEW_NODES, 0),
    ({"ExecutionRole": "arn:aws:iam::111122223333:role/old"}, "ExecutionRole", NEW_NODES, 0),
])
def test_a_group_that_differs(changes: dict[str, Any], field: str, how: str, destroys: int) -> None:
    found = plan(live(**changes), WANTED)
    [change] = found.changes
    assert (change.where, change.field, change.how, found.destroys) == ("work", field, how, destroys)
    assert found.possible is (how != IMPOSSIBLE)


@pytest.mark.parametrize(("key", "value", "how"), [
    ("NodeRecovery", "None", IN_PLACE), ("VpcConfig", {"SecurityGroupIds": ["sg-2"], "Subnets": []}, IMPOSSIBLE),
    ("Orchestrator", {"Slurm": {"SlurmConfigStrategy": "Managed"}}, IN_PLACE), ("Orchestrator", None, IMPOSSIBLE)])
def test_a_cluster_that_differs(key: str, value: Any, how: str) -> None:
    answer = live()
    answer[key] = value
    [change] = plan(answer, WANTED).changes
    assert (change.where, change.field, change.how) == ("cluster", key, how)


def test_groups_come_and_go_and_the_request_is_one_that_aws_takes() -> None:
    answer = live()
    answer["InstanceGroups"].append({"InstanceGroupName": "old", "InstanceType": "ml.c5.large", "TargetCount": 2,
                                     "CurrentCount": 2})
    answer["InstanceGroups"].pop(1)
    found = plan(answer, WANTED)
    assert [(change.where, change.note, change.destroys) for change in found.changes] == [
        ("work", "a new group", 0), ("old", "the group goes", 2)]
    assert found.request["InstanceGroupsToDelete"] == ["old"] and "VpcConfig" not in found.request
    assert request_shape.problems("sagemaker", "UpdateCluster", found.request) == []
