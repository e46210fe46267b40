"""Clusters whose nodes are provisioned continuously: boto3, the real control plane, machines that are directories."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from hyperpod_rehearsal.platform.recovery import Recovery
from rehearsal_tests.test_control_plane import endpoint, group, nodes, sagemaker, wait
from tests.support.wait import until

__all__ = ["endpoint", "sagemaker"]

SLURM = {"NodeProvisioningMode": "Continuous", "Orchestrator": {"Slurm": {}}}


def groups(workers):
    return [
        group("head", 1, SlurmConfig={"NodeType": "Controller"}),
        group("gpu", workers, SlurmConfig={"NodeType": "Compute", "PartitionNames": ["p"]}),
    ]


def events(sagemaker, **filters):
    return sagemaker.list_cluster_events(ClusterName="demo", MaxResults=100, **filters)["Events"]


def test_a_worker_that_fails_is_tried_again_and_the_cluster_is_in_service_all_the_time(sagemaker, operations):
    broken = [True]
    machines = operations.fleet.machines
    machines.agent_report = lambda config: (
        ("Failed", "on_create.sh exited 1: boom")
        if broken[0] and config["slurm_role"] == "Compute"
        else ("Running", "")
    )
    machines.answers = {
        "/opt/slurm/bin/scontrol -o show node": "NodeName=x State=DOWN SlurmdStartTime=2096-01-01T00:00:00"
    }
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=groups(1), **SLURM)
    answer = wait(sagemaker)
    assert answer["ClusterStatus"] == "InService" and answer["NodeProvisioningMode"] == "Continuous"
    until(lambda: [event for event in events(sagemaker) if event["EventLevel"] == "Error"])
    [failed] = [event for event in events(sagemaker, InstanceGroupName="gpu") if event["EventLevel"] == "Error"]
    details = sagemaker.describe_cluster_event(ClusterName="demo", EventId=failed["EventId"])["EventDetails"]
    metadata = details["EventDetails"]["EventMetadata"]["Instance"]
    assert metadata == {"FailureMessage": "on_create.sh exited 1: boom", "LcsExecutionState": "Failed"}
    assert "EventDetails" not in failed
    broken[0] = False
    cluster = operations.clusters["demo"]
    until(lambda: not operations.claimed_ids)
    Recovery(operations, operations.fleet.stopping).recover_cluster_nodes(cluster)
    until(lambda: [node["InstanceStatus"]["Status"] for node in nodes(sagemaker)] == ["Running", "Running"])
    described = sagemaker.describe_cluster(ClusterName="demo")["InstanceGroups"]
    assert [entry["CurrentCount"] for entry in described] == [1, 1]
    new = cluster.nodes_in_group("gpu")[0]
    assert new.replaces == failed["InstanceId"]
    newest = [event["Description"] for event in events(sagemaker, NodeId=new.instance_id)]
    assert newest[0].endswith("has Succeeded") and newest[1].endswith("has Started")
    assert events(sagemaker, SortOrder="Ascending")[0]["ResourceType"] == "Cluster"


def test_it_grows_while_it_is_in_service(sagemaker, operations):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=groups(1), **SLURM)
    wait(sagemaker)
    until(lambda: not operations.claimed_ids)
    sagemaker.update_cluster(ClusterName="demo", InstanceGroups=groups(3), **SLURM)
    assert sagemaker.describe_cluster(ClusterName="demo")["ClusterStatus"] == "InService"
    until(lambda: [node["InstanceStatus"]["Status"] for node in nodes(sagemaker)] == ["Running"] * 4)


def test_without_its_controller_it_has_failed(sagemaker, operations):
    operations.fleet.machines.agent_report = lambda config: ("Failed", "no")
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=groups(1), **SLURM)
    assert wait(sagemaker)["ClusterStatus"] == "Failed"


def test_events_are_kept_for_no_other_cluster(sagemaker):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 1)])
    with pytest.raises(ClientError, match="only supported for cluster with NodeProvisioningMode set to Continuous"):
        events(sagemaker)


@pytest.mark.parametrize(
    "change", [{"Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}}}, {"InstanceGroups": [group("gpu", 1)]}]
)
def test_requests_that_hyperpod_refuses(sagemaker, change):
    with pytest.raises(ClientError, match="ValidationException"):
        sagemaker.create_cluster(**{"ClusterName": "demo", "InstanceGroups": groups(1), **SLURM, **change})
