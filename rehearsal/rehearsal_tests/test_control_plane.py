"""Clusters through boto3, the real endpoint and the real control plane; only the machines are directories."""

from __future__ import annotations

import json

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.platform import health_check
from hyperpod_rehearsal.platform.control_plane import RehearsalControlPlane
from hyperpod_rehearsal.platform.recovery import Recovery
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.aws import serving
from tests.support.wait import until

ROLE = "arn:aws:iam::111122223333:role/Test"
SOURCE = "s3://sagemaker-test/bundle/"


@pytest.fixture
def endpoint(operations):
    with serving(operations.store, RehearsalControlPlane(operations), keys={"a": Key("a", "b")}) as server:
        yield server.url


def client(service, endpoint):
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def sagemaker(endpoint):
    return client("sagemaker", endpoint)


def group(name, count, **more):
    return {
        "InstanceGroupName": name,
        "InstanceType": "ml.g5.8xlarge",
        "InstanceCount": count,
        "ExecutionRole": ROLE,
        "LifeCycleConfig": {"SourceS3Uri": SOURCE, "OnCreate": "on_create.sh"},
        **more,
    }


def wait(sagemaker, name="demo", status=("InService", "Failed")):
    def description():
        cluster = sagemaker.describe_cluster(ClusterName=name)
        return cluster if cluster["ClusterStatus"] in status else None

    return until(description, what=f"cluster that is one of {status}")


def nodes(sagemaker, name="demo"):
    return sagemaker.list_cluster_nodes(ClusterName=name)["ClusterNodeSummaries"]


def test_a_cluster_comes_into_service(sagemaker):
    arn = sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("head", 1), group("gpu", 2)])["ClusterArn"]
    cluster = wait(sagemaker)
    assert cluster["ClusterStatus"] == "InService" and "FailureMessage" not in cluster
    assert [(entry["CurrentCount"], entry["TargetCount"]) for entry in cluster["InstanceGroups"]] == [(1, 1), (2, 2)]
    listed = nodes(sagemaker, arn)
    assert [node["PrivateDnsHostname"] for node in listed] == [
        "ip-10-1-41-18.ec2.internal",
        "ip-10-1-42-18.ec2.internal",
        "ip-10-1-42-19.ec2.internal",
    ]
    details = sagemaker.describe_cluster_node(ClusterName="demo", NodeId=listed[0]["InstanceId"])["NodeDetails"]
    assert details["PrivatePrimaryIp"] == "10.1.41.18" and details["InstanceStatus"]["Status"] == "Running"


def test_a_failing_script_fails_the_cluster_with_its_words(sagemaker, operations):
    operations.fleet.machines.agent_report = lambda config: (
        "Failed",
        "on_create.sh exited 3; the end of its log:\nboom",
    )
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 2)])
    cluster = wait(sagemaker)
    assert cluster["ClusterStatus"] == "Failed" and cluster["FailureMessage"].count("boom") == 1
    assert all(node["InstanceId"] in cluster["FailureMessage"] for node in nodes(sagemaker))
    assert {node["InstanceStatus"]["Status"] for node in nodes(sagemaker)} == {"Failure"}


def test_logs_that_differ_in_a_name_only_are_not_all_quoted_in_full(sagemaker, operations):
    operations.fleet.machines.agent_report = lambda config: (
        "Failed",
        f"on_create.sh exited 3; the end of its log:\nfirst\n{config['instance_id']}\nboom",
    )
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 3)])
    message = wait(sagemaker)["FailureMessage"]
    assert message.count("\nfirst\n") == 1 and message.count("boom") == 3 and len(message.splitlines()) == 7
    assert all(node["InstanceId"] in message for node in nodes(sagemaker))


@pytest.mark.parametrize(
    "change, code",
    [
        ({"InstanceGroups": [group("a", 1), group("a", 1)]}, "ValidationException"),
        (
            {"InstanceGroups": [group("a", 1, LifeCycleConfig={"SourceS3Uri": "s3://other/x", "OnCreate": "o.sh"})]},
            "ValidationException",
        ),
    ],
)
def test_requests_that_hyperpod_refuses(sagemaker, change, code):
    with pytest.raises(ClientError) as caught:
        sagemaker.create_cluster(**{"ClusterName": "demo", **change})
    assert caught.value.response["Error"]["Code"] == code


def test_names_are_taken_until_the_cluster_is_gone(sagemaker):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 1)])
    wait(sagemaker)
    with pytest.raises(ClientError, match="ResourceInUse"):
        sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 1)])
    sagemaker.delete_cluster(ClusterName="demo")
    until(lambda: sagemaker.list_clusters()["ClusterSummaries"] == [])
    with pytest.raises(ClientError, match="ResourceNotFound"):
        sagemaker.describe_cluster(ClusterName="demo")


def test_replacing_a_node_keeps_its_place(sagemaker):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 2)])
    wait(sagemaker)
    old = nodes(sagemaker)[0]
    response = sagemaker.batch_replace_cluster_nodes(
        ClusterName="demo", NodeIds=[old["InstanceId"], "i-0123456789abcdef0"]
    )
    assert response["Successful"] == [old["InstanceId"]]
    assert [failure["ErrorCode"] for failure in response["Failed"]] == ["InstanceIdNotFound"]

    def replaced():
        same_place = [node for node in nodes(sagemaker) if node["PrivateDnsHostname"] == old["PrivateDnsHostname"]]
        return (
            same_place
            and same_place[0]["InstanceId"] != old["InstanceId"]
            and same_place[0]["InstanceStatus"]["Status"] == "Running"
        )

    until(replaced)


def test_reboot_keeps_the_instance(sagemaker, operations):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 1)])
    wait(sagemaker)
    instance_id = nodes(sagemaker)[0]["InstanceId"]
    sagemaker.batch_reboot_cluster_nodes(ClusterName="demo", NodeIds=[instance_id])
    until(lambda: operations.fleet.machines.started.count(instance_id) == 2)
    until(lambda: nodes(sagemaker)[0]["InstanceStatus"]["Status"] == "Running")
    assert nodes(sagemaker)[0]["InstanceId"] == instance_id


def test_update_grows_and_shrinks_a_group(sagemaker):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 1)])
    wait(sagemaker)
    first = nodes(sagemaker)[0]["InstanceId"]
    for count in (3, 1):
        sagemaker.update_cluster(ClusterName="demo", InstanceGroups=[group("gpu", count)])
        wait(sagemaker)
        assert len(nodes(sagemaker)) == count
    assert nodes(sagemaker)[0]["InstanceId"] == first


def with_slurm(store: StoredBuckets, endpoint):
    parameters = {"controller_group": "head", "worker_groups": [{"instance_group_name": "gpu", "partition_name": "p"}]}
    client("s3", endpoint).put_object(
        Bucket="sagemaker-test", Key="bundle/provisioning_parameters.json", Body=json.dumps(parameters).encode()
    )


def test_a_dead_worker_is_down_replaced_and_resumed(sagemaker, operations, endpoint):
    with_slurm(operations.store, endpoint)
    machines = operations.fleet.machines
    machines.answers = {
        "/opt/slurm/bin/scontrol -o show node": "NodeName=x State=DOWN SlurmdStartTime=2096-01-01T00:00:00"
    }
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("head", 1), group("gpu", 1)])
    wait(sagemaker)
    cluster = operations.clusters["demo"]
    worker = cluster.nodes_in_group("gpu")[0]
    conf = (machines.root(cluster.controller.instance_id) / "opt/slurm/etc/slurm.conf").read_text()
    assert "PartitionName=p Nodes=ip-10-1-42-18" in conf
    machines.exit_codes[worker.instance_id] = 137
    Recovery(operations, operations.fleet.stopping).recover_cluster_nodes(cluster)
    until(lambda: any("state=resume" in line for line in machines.executed))
    slurm = [line for line in machines.executed if "update" in line]
    assert "state=down" in slurm[0] and "state=resume" in slurm[-1]
    new = cluster.nodes_in_group("gpu")[0]
    assert (new.replaces, new.ip, new.status) == (worker.instance_id, worker.ip, "Running")


def test_a_reason_asks_for_replacement_only_when_it_is_exact(sagemaker, operations, endpoint):
    with_slurm(operations.store, endpoint)
    machines = operations.fleet.machines
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("head", 1), group("gpu", 1)])
    wait(sagemaker)
    cluster = operations.clusters["demo"]
    before = cluster.nodes_in_group("gpu")[0].instance_id
    recovery = Recovery(operations, operations.fleet.stopping)
    for state_and_reason in ("failing|Action:Replace", "fail|Action:Replace.", "idle|none"):
        machines.answers = {"/opt/slurm/bin/sinfo": f"ip-10-1-42-18|{state_and_reason}"}
        recovery.recover_cluster_nodes(cluster)
        assert cluster.nodes_in_group("gpu")[0].instance_id == before
    machines.answers = {"/opt/slurm/bin/sinfo": "ip-10-1-42-18|fail*|Action:Replace"}
    recovery.recover_cluster_nodes(cluster)
    until(lambda: [node.instance_id for node in cluster.nodes_in_group("gpu")] not in ([before], []))


def test_without_recovery_a_dead_node_is_only_labelled(sagemaker, operations):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 1)], NodeRecovery="None")
    wait(sagemaker)
    node = operations.clusters["demo"].nodes_in_group("gpu")[0]
    operations.fleet.machines.exit_codes[node.instance_id] = 137
    Recovery(operations, operations.fleet.stopping).recover_cluster_nodes(operations.clusters["demo"])
    found = nodes(sagemaker)[0]
    assert found["InstanceId"] == node.instance_id and found["InstanceStatus"]["Status"] == "Failure"


def test_both_sources_of_slurm_fail_the_creation(sagemaker, operations, endpoint):
    with_slurm(operations.store, endpoint)
    sagemaker.create_cluster(
        ClusterName="demo",
        InstanceGroups=[
            group("head", 1, SlurmConfig={"NodeType": "Controller"}),
            group("gpu", 1, SlurmConfig={"NodeType": "Compute"}),
        ],
    )
    assert "cannot include both" in wait(sagemaker)["FailureMessage"]


def test_scalings_are_operations(sagemaker):
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 1)])
    wait(sagemaker)
    assert sagemaker.list_cluster_operations(ClusterName="demo")["ClusterOperationSummaries"] == []
    sagemaker.update_cluster(ClusterName="demo", InstanceGroups=[group("gpu", 3)])
    wait(sagemaker)
    (scaling,) = sagemaker.list_cluster_operations(ClusterName="demo", Type="Scaling")["ClusterOperationSummaries"]
    assert scaling["Status"] == "Done"
    found = sagemaker.describe_cluster_operation(ClusterName="demo", OperationId=scaling["OperationId"])
    assert found["ScalingDetails"] == [
        {
            "InstanceGroupName": "gpu",
            "Status": "Done",
            "Original": {"CurrentCount": 1, "TargetCount": 1},
            "Desired": {"CurrentCount": 3, "TargetCount": 3},
        }
    ]
    assert "ActiveOperations" not in sagemaker.describe_cluster(ClusterName="demo")["InstanceGroups"][0]
    with pytest.raises(ClientError, match="not found"):
        sagemaker.describe_cluster_operation(ClusterName="demo", OperationId="0" * 8 + "-0000-4000-8000-" + "0" * 12)


def test_a_health_check_reserves_nodes_and_gives_them_back(sagemaker, operations, endpoint, monkeypatch):
    monkeypatch.setattr(health_check, "CHECK_SECONDS", 0.5)
    with_slurm(operations.store, endpoint)
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[group("head", 1), group("gpu", 2)])
    wait(sagemaker)
    first, second = (node.instance_id for node in operations.clusters["demo"].nodes_in_group("gpu"))
    check = {"InstanceGroupName": "gpu", "InstanceIds": [first], "DeepHealthChecks": ["InstanceStress"]}
    sagemaker.start_cluster_health_check(ClusterName="demo", DeepHealthCheckConfigurations=[check])
    states = {node["InstanceId"]: node["InstanceStatus"]["Status"] for node in nodes(sagemaker)}
    assert (states[first], states[second]) == ("DeepHealthCheckInProgress", "Running")
    (running,) = sagemaker.list_cluster_operations(ClusterName="demo", Status="InProgress")["ClusterOperationSummaries"]
    found = sagemaker.describe_cluster_operation(ClusterName="demo", OperationId=running["OperationId"])
    assert (found["Type"], found["DeepHealthCheckDetails"]) == ("DeepHealthCheck", [check])
    with pytest.raises(ClientError, match="in use by another operation"):
        sagemaker.start_cluster_health_check(ClusterName="demo", DeepHealthCheckConfigurations=[check])
    until(lambda: {node["InstanceStatus"]["Status"] for node in nodes(sagemaker)} == {"Running"})
    executed = "\n".join(operations.fleet.machines.executed)
    assert executed.index("create reservation=hyperpod-health-check") < executed.index("delete reservation=")
    for entry, code in (
        ({**check, "InstanceGroupName": "nobody"}, "ResourceNotFound"),
        ({**check, "InstanceIds": ["i-00000000"]}, "ResourceNotFound"),
        ({"InstanceGroupName": "head", "DeepHealthChecks": ["InstanceStress"]}, "ValidationException"),
    ):
        with pytest.raises(ClientError) as refused:
            sagemaker.start_cluster_health_check(ClusterName="demo", DeepHealthCheckConfigurations=[entry])
        assert refused.value.response["Error"]["Code"] == code


def test_what_a_group_is_made_of_comes_back(sagemaker):
    plan = "arn:aws:sagemaker:us-east-1:111122223333:training-plan/mine"
    types = ["ml.p5.48xlarge", "ml.p5e.48xlarge"]
    spot = {
        **group("spot", 1),
        "InstanceRequirements": {"InstanceTypes": types},
        "CapacityRequirements": {"Spot": {}},
        "NetworkInterface": {"InterfaceType": "efa-only"},
        "AutoPatchConfig": {"PatchingStrategy": "WhenIdle", "PatchSchedule": {"NextPatchDate": "2026-12-01T00:00:00Z"}},
    }
    del spot["InstanceType"]
    sagemaker.create_cluster(ClusterName="demo", InstanceGroups=[spot, group("plan", 1, TrainingPlanArn=plan)])
    wait(sagemaker)
    flexible, planned = sagemaker.describe_cluster(ClusterName="demo")["InstanceGroups"]
    assert flexible["InstanceRequirements"]["DesiredInstanceTypes"] == types
    assert flexible["InstanceTypeDetails"] == [{"InstanceType": types[0], "CurrentCount": 1}]
    assert (flexible["CapacityRequirements"], flexible["NetworkInterface"]) == (
        {"Spot": {}},
        {"InterfaceType": "efa-only"},
    )
    date = flexible["AutoPatchConfig"]["CurrentPatchSchedule"]["NextPatchDate"]
    assert date.timestamp() == 1796083200.0
    assert planned["TrainingPlanStatus"] == "Active"
    kinds = {
        node["InstanceGroupName"]: sagemaker.describe_cluster_node(ClusterName="demo", NodeId=node["InstanceId"])
        for node in nodes(sagemaker)
    }
    assert kinds["spot"]["NodeDetails"]["CapacityType"] == "Spot"
    assert kinds["plan"]["NodeDetails"]["CapacityType"] == "OnDemand"
    for name in (plan, "mine"):
        assert sagemaker.describe_training_plan(TrainingPlanName=name)["Status"] == "Active"
    with pytest.raises(ClientError, match="not found"):
        sagemaker.describe_training_plan(TrainingPlanName="another")
    more = {**spot, "InstanceRequirements": {"InstanceTypes": [*types, "ml.p5en.48xlarge"]}}
    sagemaker.update_cluster(ClusterName="demo", InstanceGroups=[more])
    wait(sagemaker)
    fewer = {**spot, "InstanceRequirements": {"InstanceTypes": types[:1]}}
    with pytest.raises(ClientError, match="no type can be taken out"):
        sagemaker.update_cluster(ClusterName="demo", InstanceGroups=[fewer])
