"""SSM by botocore's Stubber, which checks both sides against the service model (moto has no sessions); logs by moto."""

from __future__ import annotations

import time

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from hyperpod_kit.aws.logs import Logs, creation_log_stream, log_group
from hyperpod_kit.aws.ssm import Ssm, node_session_target, session_request
from hyperpod_kit.errors import AwsError

ARN = "arn:aws:sagemaker:us-east-1:111122223333:cluster/abc123def456"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


def test_a_session_and_a_node_that_has_none() -> None:
    ssm = Ssm("us-east-1")
    assert (ssm.region, ssm.endpoint) == ("us-east-1", "https://ssm.us-east-1.amazonaws.com")
    node = node_session_target(ARN, "worker-group", "i-0123456789abcdef0")
    assert node == "sagemaker-cluster:abc123def456_worker-group-i-0123456789abcdef0"
    request = session_request(node, "AWS-StartSSHSession", {"portNumber": ["22"]})
    token = {"SessionId": "s-1", "TokenValue": "t", "StreamUrl": "wss://x"}
    with Stubber(ssm._client) as stub:
        stub.add_response("start_session", token, request)
        assert ssm.start_session(request) == token
        stub.add_client_error("start_session", "TargetNotConnected", f"{node} is not connected.")
        with pytest.raises(AwsError, match="TargetNotConnected") as caught:
            ssm.start_session(session_request(node))
        assert "SSM agent" in (caught.value.hint or "")
        stub.add_response("terminate_session", {"SessionId": "s-1"}, {"SessionId": "s-1"})
        ssm.terminate_session("s-1")
        stub.assert_no_pending_responses()


def test_the_end_of_a_nodes_log() -> None:
    with mock_aws():
        group, stream = log_group("demo", ARN), creation_log_stream("worker-group", "i-1")
        assert (group, stream) == ("/aws/sagemaker/Clusters/demo/abc123def456", "LifecycleConfig/worker-group/i-1")
        logs = Logs("us-east-1")
        assert logs.tail(group, stream, 5) == []
        client = boto3.client("logs", "us-east-1")
        client.create_log_group(logGroupName=group)
        assert logs.tail(group, stream, 5) == []
        client.create_log_stream(logGroupName=group, logStreamName=stream)
        client.put_log_events(
            logGroupName=group,
            logStreamName=stream,
            logEvents=[
                {"timestamp": int(time.time() * 1000) + number, "message": f"line {number}\n"} for number in range(20)
            ],
        )
        assert logs.tail(group, stream, 3) == ["line 17", "line 18", "line 19"]
        assert [line.message for line in logs.search(group, prefix="LifecycleConfig/")][:2] == ["line 0", "line 1"]
        assert list(logs.search("/nothing")) == []
        assert [line.stream for line in logs.search(group, pattern='"line 7"')] == [stream]
