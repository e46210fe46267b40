"""The rehearsal's CloudWatch Logs, asked by boto3 over HTTP: nodes' own files as streams."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Iterator

import boto3
import pytest
from botocore.exceptions import ClientError

from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.logs.service import LogsService
from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster, RehearsedNode
from hyperpod_rehearsal.records.layout import Layout
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.aws import serving

KEYS = {"test": Key("test", "test"), "node": Key("node", "node", node=True)}
GROUP = "/aws/sagemaker/Clusters/demo/abcdefghijkl"
MINUTE = "2026-01-02T03:04:{:02d}Z"
LOG = "root/var/log/provision/provisioning.log"


def line(second: int, step: str = "mounts") -> str:
    return json.dumps({"ts": MINUTE.format(second), "step": step})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def url(layout: Layout) -> Iterator[str]:
    nodes = {name: RehearsedNode(name, "workers", "ml.m5.large", 0, "10.1.0.1") for name in ("i-1", "i-2", "i-3")}
    clusters = {"demo": RehearsedCluster("demo", "abcdefghijkl", {}, nodes=nodes)}
    with serving(StoredBuckets(layout.root / "s3"), keys=KEYS, logs=LogsService(layout, clusters)) as server:
        yield server.url


def logs(url: str, key: str = "test") -> Any:
    return boto3.client(
        "logs", endpoint_url=url, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=key
    )


def write(layout: Layout, instance: str, *lines: str) -> Path:
    path = layout.nodes / instance / LOG
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{text}\n" for text in lines))
    return path


def test_lines_of_all_nodes_by_time_by_pattern_and_by_page(layout: Layout, url: str) -> None:
    write(layout, "i-1", line(1, "efs"), line(2), "not JSON", line(5))
    write(layout, "i-2", line(3), "[" * 50_000)
    page = logs(url).filter_log_events(logGroupName=GROUP, filterPattern='{ $.step = "mounts" }', limit=2)
    more = logs(url).filter_log_events(
        logGroupName=GROUP, filterPattern='{ $.step = "mounts" }', limit=2, nextToken=page["nextToken"]
    )
    events = [(event["logStreamName"][-3:], json.loads(event["message"])["ts"][-3:]) for event in page["events"]]
    assert events == [("i-1", "02Z"), ("i-2", "03Z")] and "nextToken" not in more
    assert [event["message"] for event in more["events"]] == [line(5)]
    after = page["events"][1]["timestamp"]
    late = logs(url).filter_log_events(
        logGroupName=GROUP, startTime=after, logStreamNamePrefix="LifecycleConfig/workers/i-1"
    )
    assert [event["message"] for event in late["events"]] == [line(5)]
    tail = logs(url).get_log_events(logGroupName=GROUP, logStreamName="LifecycleConfig/workers/i-1", limit=2)
    assert [event["message"] for event in tail["events"]] == ["not JSON", line(5)]


def test_a_node_that_is_gone_has_left_its_log(layout: Layout, url: str) -> None:
    (layout.retained_logs / "i-0a").mkdir(parents=True)
    (layout.retained_logs / "i-0a/provisioning.log").write_text(line(1))
    response = logs(url).get_log_events(logGroupName=GROUP, logStreamName="LifecycleConfig/workers/i-0a")
    assert [event["message"] for event in response["events"]] == [line(1)]


def test_a_link_in_place_of_the_log_leads_nowhere(layout: Layout, url: str) -> None:
    path = write(layout, "i-1")
    path.unlink()
    secret = layout.root / "secret"
    secret.write_text("of this machine")
    path.symlink_to(secret)
    os.mkfifo(path.with_name("pipe"))
    assert logs(url).filter_log_events(logGroupName=GROUP)["events"] == []


@pytest.mark.parametrize(
    "request_of, code",
    [
        ({"logGroupName": "/aws/sagemaker/Clusters/other/x"}, "ResourceNotFoundException"),
        ({"logGroupName": GROUP, "filterPattern": "ERROR"}, "InvalidParameterException"),
        ({"logGroupName": GROUP, "nextToken": "x"}, "InvalidParameterException"),
        ({"logGroupName": GROUP, "limit": 10_001}, "InvalidParameterException"),
    ],
)
def test_what_is_refused(url: str, request_of: dict[str, Any], code: str) -> None:
    with pytest.raises(ClientError) as caught:
        logs(url).filter_log_events(**request_of)
    assert caught.value.response["Error"]["Code"] == code
    with pytest.raises(ClientError, match="does not implement DescribeLogGroups"):
        logs(url).describe_log_groups()
    with pytest.raises(ClientError, match="logs:FilterLogEvents"):
        logs(url, "node").filter_log_events(logGroupName=GROUP)
