"""events and connect, and what diagnose makes of events, against an endpoint that checks every request's shape."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Iterator

import pytest

from tests.support.http import Responder, served

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

ARN = "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcdefghijkl"
REASON = "on_create.sh exited 1: mount.nfs4: access denied by server while mounting 127.0.0.1:/"


def event(number: int, description: str, level: str = "Info", age: float = 60.0, **metadata: str) -> dict[str, Any]:
    return {
        "EventId": f"{number:08x}-0000-4000-8000-000000000000",
        "ClusterArn": ARN,
        "ClusterName": "demo",
        "InstanceGroupName": "worker-group",
        "InstanceId": f"i-{number:017x}",
        "ResourceType": "Instance",
        "EventTime": time.time() - age,
        "Description": description,
        "EventLevel": level,
        "EventDetails": {"EventMetadata": {"Instance": metadata}},
    }


@pytest.fixture
def made(cloud: Cloud, project: Path, hk: Hk) -> Cloud:
    """A cluster `demo` with four nodes."""
    cloud.control.create_cluster(json.loads(hk("create-cluster", "--dry-run", "--json").out))
    return cloud


def test_events_are_listed_filtered_and_told_with_their_reason(made: Cloud, hk: Hk) -> None:
    refused = hk("events")
    assert refused.code == 2 and "cluster demo has no events" in refused.err
    made.control.events = [event(number, f"Scaling step {number}", age=9000 - number) for number in range(120)]
    made.control.events += [
        event(500, "Instance creation failed", "Error", FailureMessage=REASON, LcsExecutionState="Failed"),
        event(501, "Scaled", age=5.0),
    ]
    shown = hk("events")
    assert shown.code == 0 and len(shown.out.splitlines()) == 50 and "(--limit 0 for all)" in shown.err
    last, newest = shown.out.splitlines()[-2:]
    assert "Error" in last and REASON in last and last.endswith("(lifecycle script: Failed)") and "Scaled" in newest
    assert len(json.loads(hk("events", "--limit", "0", "--json").out)["events"]) == 122
    [bad] = json.loads(hk("events", "--level", "error", "--json").out)["events"]
    assert (bad["failure"], bad["lifecycle"], bad["instance_id"]) == (REASON, "Failed", f"i-{500:017x}")
    assert len(json.loads(hk("events", "--since", "10m", "--json").out)["events"]) == 2
    assert len(json.loads(hk("events", "--node", f"i-{7:017x}", "--json").out)["events"]) == 1
    wrong = hk("events", "--since", "yesterday")
    assert wrong.code == 2 and "expected something like 45s" in wrong.err


def test_diagnose_tells_of_nodes_that_failed_and_are_gone(made: Cloud, hk: Hk) -> None:
    """Continuous provisioning has taken the node away already; the endpoint has no CloudWatch to read."""
    made.control.clusters["demo"]["NodeProvisioningMode"] = "Continuous"
    made.control.script = [("InService", {"controller-machine": 0, "worker-group": 0}, "")]
    failing = [
        event(number, "Instance creation failed", "Error", FailureMessage=REASON, LcsExecutionState="Failed")
        for number in range(500, 510)
    ]
    made.control.events = [event(1, "Instance creation failed", "Error", age=7200, FailureMessage="long ago"), *failing]
    told = json.loads(hk("diagnose", "--json").out)
    [node] = told["nodes"]
    assert (node["target"]["instance_id"], node["lifecycle"], node["message"]) == (f"i-{509:017x}", "Failed", REASON)
    assert "efs-denied" in [known["code"] for known in node["known"]]
    said = hk("diagnose")
    assert said.code == 1 and "gone" in said.out and "its log is not available either" in said.out
    assert "do: elasticfilesystem:ClientMount" in said.out


class Sessions(Responder):
    """SSM's StartSession, and nothing else."""

    asked: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        self.asked.append((self.headers["X-Amz-Target"], json.loads(self.body())))
        self.answer(200, json.dumps({"SessionId": "s-1", "TokenValue": "secret", "StreamUrl": "wss://x/"}).encode())


@pytest.fixture
def ssm(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Sessions.asked = []
    with served(Sessions) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", url)
        yield url


def program(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def hyperpod_kit(*words: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: connect becomes another program."""
    return subprocess.run(
        [sys.executable, "-m", "hyperpod_kit.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ),
    )


def test_connect_becomes_the_sessions_plugin(
    made: Cloud, ssm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin is a stand-in that says how it was started: the real one talks to AWS only."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program(
        tools,
        "session-manager-plugin",
        'if [ "$1" = --version ]; then echo 1.2.707.0; exit; fi\n'
        'printf "%s\\n" "$@" "token:$AWS_SSM_START_SESSION_RESPONSE"',
    )
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    done = hyperpod_kit("connect")
    assert done.returncode == 0, done.stderr
    target = f"sagemaker-cluster:abcdefghijkl_controller-machine-i-{0:017x}"
    assert done.stdout.splitlines()[:6] == [
        "AWS_SSM_START_SESSION_RESPONSE",
        "us-east-1",
        "StartSession",
        "",
        json.dumps({"Target": target}),
        ssm,
    ]
    assert json.loads(done.stdout.splitlines()[6].partition(":")[2])["TokenValue"] == "secret"
    assert Sessions.asked == [("AmazonSSM.StartSession", {"Target": target})]
    tunnel = hyperpod_kit("connect", "worker-group/2", "--proxy", "22")
    assert tunnel.returncode == 0
    assert Sessions.asked[1][1]["DocumentName"] == "AWS-StartSSHSession"
    assert Sessions.asked[1][1]["Target"].endswith(f"_worker-group-i-{1:08x}{2:09x}")


def test_connect_says_what_is_missing_before_it_opens_a_session(
    made: Cloud, ssm: str, hk: Hk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = hk("connect")
    assert missing.code == 3 and "session-manager-plugin is not on PATH" in missing.err and Sessions.asked == []
    shown = hk("connect", "worker-group/0", "--dry-run")
    assert shown.out.startswith("aws ssm start-session --region us-east-1 --target sagemaker-cluster:abcdefghijkl_w")
    assert hk("connect", "--", "ls").code == 3 and hk("connect", "worker-group/9").code == 3
    config = hk("connect", "--ssh-config", "--ssh-user", "root").out
    assert config.count("Host demo-") == 4
    assert "connect worker-group/2 --cluster demo --region us-east-1 --proxy %p" in config
    assert "10.0.1.2" in json.loads(hk("connect", "10.0.1.2", "--ssh", "--dry-run", "--json").out)["command"]


def test_the_configuration_comes_before_the_nodes(made: Cloud, project: Path, hk: Hk) -> None:
    where = ["--dry-run", "--json"]
    expected = json.loads(hk("connect", "worker-group/2", *where).out)
    other = (project / "provisioning_parameters.json").rename(project / "other.json")
    assert "specify a cluster" in hk("connect", "worker-group/2", *where).err
    assert json.loads(hk("connect", str(other), "worker-group/2", *where).out) == expected
    asked = json.loads(hk("connect", str(other), "worker-group/2", "uptime", "--ssh", *where).out)["command"]
    assert asked[-1] == "uptime" and "User=ubuntu" in asked and not any("KnownHosts" in word for word in asked)
    assert json.loads(hk("reboot-node", str(other), "worker-group/2", *where).out)["cluster"] == "demo"
    alone = hk("replace-node", str(other))
    assert alone.code == 2 and "Missing argument 'NODE…'" in alone.err


def test_every_page_of_nodes_is_read(made: Cloud, hk: Hk) -> None:
    made.control.script = [("InService", {"controller-machine": 1, "worker-group": 250}, "")]
    nodes = json.loads(hk("list-cluster-nodes", "--json").out)["nodes"]
    assert len({node["instance_id"] for node in nodes}) == 251
    assert "251 nodes, 251 running" in hk("list-cluster-nodes").err
