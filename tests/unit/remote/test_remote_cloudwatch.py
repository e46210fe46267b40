"""Reports that nodes push: what the timer writes is what is read back, from CloudWatch's own API (moto)."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any, Iterator

import boto3
import pytest
from moto import mock_aws

from hyperpod_kit.aws.logs import Logs
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.reports.validate_mounts import validate_mounts
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.cloudwatch_transport import CloudWatchTransport

ARN = "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcdefghijkl"
GROUP = "/aws/sagemaker/Clusters/demo/abcdefghijkl"
OK = MountStatus("data", "mountpoint-s3", "/mnt/data", MountState.OK)
BEGAN = time.time()
"""The moment of all looks: what CloudWatch notes is later, which makes nothing old, however slow the machine is."""

WANTED = {"w": [S3Mount("data", "/mnt/data", "bucket")]}


def line(index: int, *, state: str = "ok", at: float = 0.0, instance: str = "") -> str:
    return json.dumps(
        {
            "ts": "x",
            "node": f"ip-10-0-0-{index}",
            "role": "compute",
            "step": "mounts",
            "status": "ok",
            "instance_id": instance or f"i-{index}",
            "bundle_id": "b",
            "checked_at": at or BEGAN,
            "mounts": [
                {key: value for key, value in asdict(OK).items() if key in ("name", "kind", "path")} | {"state": state}
            ],
        }
    )


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.client("logs", "us-east-1")


def send(logs: Any, index: int, *lines: str, age: float = 0.0) -> None:
    stream = f"LifecycleConfig/w/i-{index}"
    logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)
    now = int((time.time() - age) * 1000)
    logs.put_log_events(
        logGroupName=GROUP,
        logStreamName=stream,
        logEvents=[{"timestamp": now + number, "message": one} for number, one in enumerate(lines)],
    )


def look(count: int) -> list[NodeReport]:
    targets = [NodeTarget(f"i-{index}", "w", "compute", f"10.0.0.{index}") for index in range(count)]
    transport = CloudWatchTransport(Logs("us-east-1"), "demo", ARN, max_age=60.0, clock=lambda: BEGAN)
    told: list[int] = []
    reports = validate_mounts(
        targets, transport, expected=WANTED, max_age=60.0, progress=told.append, clock=lambda: BEGAN
    )
    assert sum(told) == count
    return reports


def test_the_newest_report_of_each_node_counts_and_silence_is_a_failure(logs: Any) -> None:
    logs.create_log_group(logGroupName=GROUP)
    step = json.dumps({"step": "mount:fsx", "status": "ok"})
    send(
        logs,
        0,
        "[SageMaker] The lifecycle scripts succeeded.",
        step,
        line(0, state="stale"),
        line(0),
        "} no JSON {",
    )
    send(logs, 1, line(1), line(1, state="hung"))
    send(logs, 3, step)
    send(logs, 4, line(4), line(4)[:-9])
    send(logs, 5, line(9))
    send(logs, 6, line(6, at=BEGAN - 90))
    well, hung, mute, unsaid, torn, impostor, late = look(7)
    assert well.healthy and well.mounts == (OK,)
    assert [mount.state for mount in hung.mounts] == ["hung"] and not hung.healthy
    assert "has sent no report for 120 s" in mute.error and "has sent no report" in unsaid.error
    assert (
        "aws logs tail /aws/sagemaker/Clusters/demo/abcdefghijkl --log-stream-names LifecycleConfig/w/i-2" in mute.hint
    )
    assert not torn.healthy and "not a report" in torn.error
    assert "another node answers" in impostor.error
    assert "its last report is 90 s old" in late.error


def test_all_pages_are_read(logs: Any) -> None:
    logs.create_log_group(logGroupName=GROUP)
    for index in range(3):
        send(logs, index, *["x"] * 4000, line(index))
    assert all(report.healthy for report in look(3)), "moto gives 10,000 lines a page"


def test_a_cluster_without_logs_is_a_fleet_that_says_nothing(logs: Any) -> None:
    assert ["has sent no report" in report.error for report in look(2)] == [True, True]
