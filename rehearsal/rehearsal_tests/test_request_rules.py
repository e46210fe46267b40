"""Requests that are right by the service model and that HyperPod, or the rehearsal, refuses all the same."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from rehearsal_tests.test_control_plane import ROLE, SOURCE, endpoint, group, nodes, sagemaker, wait

__all__ = ["endpoint", "sagemaker"]

CONTINUOUS = {"NodeProvisioningMode": "Continuous", "Orchestrator": {"Slurm": {}}}


def refused(call, match, code="ValidationException", **arguments):
    with pytest.raises(ClientError, match=match) as caught:
        call(**arguments)
    error = caught.value.response
    assert (error["Error"]["Code"], error["ResponseMetadata"]["HTTPStatusCode"]) == (code, 400)


def lifecycle(**fields):
    return {"InstanceGroups": [group("gpu", 1, LifeCycleConfig=fields)]}


NO_TYPE = {"InstanceGroupName": "gpu", "InstanceCount": 1, "ExecutionRole": ROLE}


@pytest.mark.parametrize(
    "change, match",
    [
        ({"InstanceGroups": None}, "At least one instance group"),
        ({"InstanceGroups": [NO_TYPE]}, "Exactly one of InstanceType and InstanceRequirements"),
        (
            {"InstanceGroups": [group("gpu", 1, InstanceRequirements={"InstanceTypes": ["ml.g5.xlarge"]})]},
            "Exactly one of",
        ),
        ({"InstanceGroups": [group("gpu", 1, MinInstanceCount=2)]}, "MinInstanceCount of gpu"),
        (lifecycle(SourceS3Uri=SOURCE), "must name a script in OnCreate or OnInitComplete"),
        (lifecycle(OnCreate="on_create.sh"), "must say in SourceS3Uri"),
        (lifecycle(SourceS3Uri=SOURCE, OnCreate="a.sh", OnInitComplete="b.sh"), "mutually exclusive"),
        (lifecycle(SourceS3Uri="s3://other/x", OnCreate="a.sh"), "must start with s3://sagemaker-"),
        (
            {"Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:111122223333:cluster/x"}}},
            "no Kubernetes here",
        ),
        ({"Orchestrator": {}}, "Exactly one orchestrator"),
        ({"Tags": [{"Key": "aws:team", "Value": "x"}]}, "aws: prefixed tag key names are not allowed"),
        ({"Tags": [{"Key": "team", "Value": "x"}, {"Key": "team", "Value": "y"}]}, "Tag keys must be unique"),
    ],
)
def test_a_creation_that_is_refused(sagemaker, change, match):
    request = {"ClusterName": "demo", "InstanceGroups": [group("gpu", 1)], **change}
    refused(sagemaker.create_cluster, match, **{key: value for key, value in request.items() if value is not None})
    assert sagemaker.list_clusters()["ClusterSummaries"] == []


@pytest.fixture
def cluster(sagemaker):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 1), group("cpu", 1)])
    wait(sagemaker)
    return sagemaker


@pytest.mark.parametrize(
    "change, match",
    [
        ({}, "UpdateCluster changes nothing"),
        (
            {"InstanceGroups": [group("gpu", 1, InstanceType="ml.c5.xlarge")]},
            "InstanceType of the existing instance group",
        ),
        ({"InstanceGroups": [group("gpu", 1, SlurmConfig={"NodeType": "Compute"})]}, "SlurmConfig of the existing"),
        ({"InstanceGroupsToDelete": ["other"]}, "names no instance group of the cluster: other"),
        ({"InstanceGroups": [group("gpu", 1)], "InstanceGroupsToDelete": ["gpu"]}, "both updated and deleted"),
        ({"InstanceGroups": [group("gpu", 1), group("gpu", 2)]}, "must be unique"),
        ({"InstanceGroups": [group("gpu", 1, MinInstanceCount=2)]}, "MinInstanceCount"),
    ],
)
def test_an_update_that_is_refused_changes_nothing(cluster, change, match):
    before = cluster.describe_cluster(ClusterName="demo")
    refused(cluster.update_cluster, match, ClusterName="demo", **change)
    after = cluster.describe_cluster(ClusterName="demo")
    assert {**after, "ResponseMetadata": 0} == {**before, "ResponseMetadata": 0}
    assert {node["InstanceType"] for node in nodes(cluster)} == {"ml.g5.8xlarge"}


@pytest.mark.parametrize(
    "operation", ["batch_reboot_cluster_nodes", "batch_replace_cluster_nodes", "batch_delete_cluster_nodes"]
)
def test_a_batch_wants_to_know_which_nodes(cluster, operation):
    call = getattr(cluster, operation)
    refused(call, "Either NodeIds or NodeLogicalIds", ClusterName="demo")
    refused(call, "only supported for clusters with", ClusterName="demo", NodeLogicalIds=["node-1"])
    refused(call, "Cluster other not found", "ResourceNotFound", ClusterName="other")


@pytest.mark.parametrize(
    "change, match",
    [
        ({"InstanceGroups": [{"InstanceGroupName": "other"}]}, "names no instance group of the cluster: other"),
        ({"ImageId": "ami-0123456789abcdef0"}, "one image"),
        ({"InstanceGroups": [{"InstanceGroupName": "gpu", "ImageReleaseVersion": "1.2.3"}]}, "one image"),
    ],
)
def test_a_software_update_that_is_refused(cluster, change, match):
    refused(cluster.update_cluster_software, match, ClusterName="demo", **change)
    assert cluster.describe_cluster(ClusterName="demo")["ClusterStatus"] == "InService"


def test_a_flexible_group_has_instances_of_its_first_type(sagemaker):
    types = ["ml.g5.xlarge", "ml.g5.2xlarge"]
    sagemaker.create_cluster(
        ClusterName="demo",
        InstanceGroups=[{**NO_TYPE, "InstanceRequirements": {"InstanceTypes": types}, "MinInstanceCount": 1}],
    )
    described = wait(sagemaker)["InstanceGroups"][0]
    assert described["InstanceRequirements"]["DesiredInstanceTypes"] == types
    assert described["MinCount"] == 1
    assert [node["InstanceType"] for node in nodes(sagemaker)] == ["ml.g5.xlarge"]
