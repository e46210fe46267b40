"""The endpoint as boto3's own parser and the AWS CLI see it."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from rehearsal_tests.s3.raw import signed
from tests.support.capabilities import require


def error_of(call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def test_the_life_of_a_cluster(client, request_body):
    arn = client.create_cluster(**request_body)["ClusterArn"]
    described = client.describe_cluster(ClusterName="demo")
    assert described["ClusterArn"] == arn and described["ClusterStatus"] == "InService"
    assert described["CreationTime"].astimezone(timezone.utc) == datetime(2023, 11, 14, 22, 13, 21, tzinfo=timezone.utc)
    assert [(group["InstanceGroupName"], group["TargetCount"]) for group in described["InstanceGroups"]] == [
        ("controller-machine", 1),
        ("worker-group", 24),
    ]
    assert client.describe_cluster(ClusterName=arn)["ClusterName"] == "demo"
    assert [item["ClusterName"] for item in client.list_clusters()["ClusterSummaries"]] == ["demo"]
    node = client.list_cluster_nodes(ClusterName="demo")["ClusterNodeSummaries"][0]
    details = client.describe_cluster_node(ClusterName="demo", NodeId=node["InstanceId"])["NodeDetails"]
    assert (details["PrivatePrimaryIp"], details["LaunchTime"]) == ("10.1.41.18", node["LaunchTime"])
    replaced = client.batch_replace_cluster_nodes(ClusterName="demo", NodeIds=[node["InstanceId"], "i-" + "f" * 17])
    assert replaced["Successful"] == [node["InstanceId"]]
    assert replaced["Failed"][0]["ErrorCode"] == "InstanceIdNotFound"
    updated = client.update_cluster(ClusterName="demo", InstanceGroups=request_body["InstanceGroups"])
    assert updated["ClusterArn"] == arn
    assert client.delete_cluster(ClusterName=arn)["ClusterArn"] == arn
    assert error_of(client.describe_cluster, ClusterName="demo") == ("ResourceNotFound", "Cluster demo not found.")


def test_errors_have_their_own_class(client, request_body):
    client.create_cluster(**request_body)
    with pytest.raises(client.exceptions.ResourceInUse):
        client.create_cluster(**request_body)
    with pytest.raises(client.exceptions.ResourceNotFound):
        client.list_cluster_nodes(ClusterName="other")


def test_nodes_come_in_pages(client, request_body):
    client.create_cluster(**request_body)
    first = client.list_cluster_nodes(ClusterName="demo")
    assert len(first["ClusterNodeSummaries"]) == 10 and "NextToken" in first
    pages = list(
        client.get_paginator("list_cluster_nodes").paginate(
            ClusterName="demo",
            InstanceGroupNameContains="worker",
            SortOrder="Descending",
            PaginationConfig={"PageSize": 7},
        )
    )
    times = [node["LaunchTime"] for page in pages for node in page["ClusterNodeSummaries"]]
    assert len(pages) == 4 and len(times) == 24 and times == sorted(times, reverse=True)


def test_a_token_belongs_to_its_question(client, request_body):
    client.create_cluster(**request_body)
    token = client.list_cluster_nodes(ClusterName="demo", MaxResults=5)["NextToken"]
    assert len(client.list_cluster_nodes(ClusterName="demo", NextToken=token)["ClusterNodeSummaries"]) == 10
    for arguments in (
        {"NextToken": "bm9uc2Vuc2U="},
        {"NextToken": "%"},
        {"NextToken": token, "InstanceGroupNameContains": "worker"},
    ):
        assert error_of(client.list_cluster_nodes, ClusterName="demo", **arguments)[0] == "ValidationException"


def test_clusters_are_filtered_and_sorted(client, request_body):
    for name in ("demo-b", "demo-a", "other"):
        client.create_cluster(**{**request_body, "ClusterName": name})
    listed = client.list_clusters(NameContains="demo", SortBy="NAME")["ClusterSummaries"]
    assert [item["ClusterName"] for item in listed] == ["demo-a", "demo-b"]


def test_requests_are_validated_in_awss_words(client, control, request_body):
    request_body["ClusterName"] = "under_score"
    request_body["InstanceGroups"][1]["InstanceType"] = "ml.none.large"
    code, message = error_of(client.create_cluster, **request_body)
    assert code == "ValidationException"
    assert message.startswith(
        "2 validation errors detected: Value 'under_score' at 'clusterName' failed to satisfy "
        "constraint: Member must satisfy regular expression pattern: "
    )
    assert (
        "Value 'ml.none.large' at 'instanceGroups.2.member.instanceType' failed to satisfy constraint: "
        "Member must satisfy enum value set: [ml.p4d.24xlarge, "
    ) in message
    assert control.requests == []


def test_a_control_plane_that_breaks_is_an_internal_failure(client, request_body):
    client.create_cluster(**request_body)
    code, message = error_of(client.batch_reboot_cluster_nodes, ClusterName="demo", NodeIds=["i-0123456789abcdef0"])
    assert (code, message) == ("InternalFailure", "RuntimeError: the control plane broke")


def test_an_answer_of_another_shape_does_not_leave_the_endpoint(client, control, request_body):
    client.create_cluster(**request_body)
    control.describe_cluster = lambda name: {"ClusterArn": "arn", "Surprise": 1, "InstanceGroups": []}
    code, message = error_of(client.describe_cluster, ClusterName="demo")
    assert code == "InternalFailure"
    assert "'clusterStatus'" in message and "'surprise'" in message


def test_operations_that_are_not_there(client):
    assert error_of(client.list_training_jobs)[0] == "UnknownOperationException"


@pytest.mark.parametrize(
    ("target", "body", "code"),
    [
        ("SageMaker.NoSuch", b"{}", "UnknownOperationException"),
        ("Other.ListClusters", b"{}", "UnknownOperationException"),
        ("SageMaker.ListClusters", b"{", "SerializationException"),
        ("SageMaker.ListClusters", b"[]", "SerializationException"),
        ("SageMaker.ListClusters", b'{"MaxResults": "5"}', "SerializationException"),
    ],
)
def test_what_is_no_call(endpoint, target, body, code):
    request = urllib.request.Request(
        endpoint.url, body, signed(endpoint.url, "POST", {"x-amz-target": target}, body, service="sagemaker")
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    with caught.value as response:
        assert response.code == 400 and json.load(response)["__type"] == code


@pytest.mark.full
def test_the_aws_cli(endpoint, request_body, tmp_path):
    aws = shutil.which("aws") or str(Path(sys.executable).with_name("aws"))
    require("aws")
    (tmp_path / "request.json").write_text(json.dumps(request_body))
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": endpoint.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_PAGER": "",
    }

    def run(*arguments):
        done = subprocess.run([aws, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("sagemaker", "create-cluster", "--cli-input-json", f"file://{tmp_path}/request.json")
    nodes = json.loads(run("sagemaker", "list-cluster-nodes", "--cluster-name", "demo"))["ClusterNodeSummaries"]
    assert len(nodes) == 25
    data = os.urandom(9 << 20)  # above the CLI's threshold for multipart
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "data.bin").write_bytes(data)
    run("s3", "mb", "s3://sagemaker-cli")
    run("s3", "cp", "--recursive", "--quiet", str(tmp_path / "bundle"), "s3://sagemaker-cli/up/")
    run("s3", "sync", "--quiet", "s3://sagemaker-cli/up/", str(tmp_path / "down"))
    assert (tmp_path / "down" / "data.bin").read_bytes() == data
