"""The words of --via on the command line: each way as a user types it, as far as one machine has it."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Iterator

import boto3
import pytest
from moto import mock_aws

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.environment import HPK_KNOWN_HOSTS, HPK_SSH_KEY, HPK_SSH_PROXY
from hyperpod_kit.remote.connect.ssh_access import KnownHosts
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.aws import KEYS, ListedNodes, endpoint

if TYPE_CHECKING:
    from tests.unit.remote.conftest import Network

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One node a group, with no address that could be reached."""
    control = ListedNodes(
        "controller-machine",
        "worker-group",
        addresses=("127.78.0.1", "127.78.0.2"),
        instance_id="i-{}",
        named=True,
    )
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    # Where a test has moto in place, its keys are everybody's.
    keys = {**KEYS, "FOOBARKEY": Key("FOOBARKEY", "FOOBARSECRET")}
    store = StoredBuckets(tmp_path / "s3")
    with endpoint(monkeypatch, store, control, keys=keys, variable="AWS_ENDPOINT_URL_SAGEMAKER"):
        yield


@contextmanager
def sent_by_the_worker(state: str) -> Iterator[None]:
    """CloudWatch with a report of the second node."""
    group, stream = "/aws/sagemaker/Clusters/demo/abcdefghijkl", "LifecycleConfig/worker-group/i-1"
    mount = {"name": "data", "kind": "nvme", "path": "/mnt/data", "state": state}
    line = {"step": "mounts", "node": "n", "instance_id": "i-1", "checked_at": time.time(), "mounts": [mount]}
    with mock_aws():
        logs = boto3.client("logs", "us-east-1")
        logs.create_log_group(logGroupName=group)
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
        logs.put_log_events(
            logGroupName=group,
            logStreamName=stream,
            logEvents=[{"timestamp": int(time.time() * 1000), "message": json.dumps(line)}],
        )
        yield


def test_pull_as_a_user_types_it(cluster: None, capsys: pytest.CaptureFixture[str]) -> None:
    with sent_by_the_worker("stale"):
        assert run_command_line(["validate-mounts", "--cluster", "demo", "--via", "pull", "--json"]) == 1
    out, err = capsys.readouterr()
    assert [node["error"] for node in json.loads(out)["nodes"]] == ["it has sent no report for 1320 s", ""]
    assert "worker-group i-1 (127.78.0.2): data at /mnt/data is stale" in err


def test_with_no_option_the_way_that_works_is_taken_and_said(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a new HyperPod: no host keys, no plugin for sessions."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    for name in (HPK_SSH_KEY, HPK_KNOWN_HOSTS, HPK_SSH_PROXY):
        monkeypatch.delenv(name, raising=False)
    with sent_by_the_worker("ok"):
        assert run_command_line(["validate-mounts", "--cluster", "demo", "--json"]) == 1
        out, err = capsys.readouterr()
        nodes = json.loads(out)["nodes"]
        assert [(node["healthy"], node["via"]) for node in nodes] == [(False, ""), (True, "pull")]
        assert nodes[0]["error"] == "it has sent no report for 1320 s"
        assert "asked: 1 node by their reports in CloudWatch; closed: ssh: there are no host keys at " in err
        assert "SSM sessions: session-manager-plugin is not on PATH" in err
        # A way that somebody has named must lead there, and what was said of how to log in must be right.
        assert run_command_line(["validate-mounts", "--cluster", "demo", "--via", "ssh"]) == 2
        assert run_command_line(["validate-mounts", "--cluster", "demo", "--ssh-key", "/nowhere/key"]) == 3
    assert "there is no private key /nowhere/key" in capsys.readouterr().err


def test_a_controller_that_nobody_names_is_asked_for(
    cluster: None, network: Network, capsys: pytest.CaptureFixture[str]
) -> None:
    network.node(lambda command: (0, "", ""))
    given = network.settings
    words = [
        "--via",
        "controller",
        "--ssh-key",
        str(given.key),
        "--known-hosts",
        str(given.known_hosts),
        "--ssh-port",
        str(given.port),
        "--connect-timeout",
        "2",
    ]
    assert run_command_line(["validate-mounts", "--cluster", "demo", *words]) == 2
    assert "cannot tell which node of demo is the controller" in capsys.readouterr().err
    assert run_command_line(["validate-mounts", str(EXAMPLE), *words]) == 3, "the controller is found, and not reached"
    assert "ubuntu@127.78.0.1" in capsys.readouterr().err


def test_without_the_plugin_no_session_is_begun(
    cluster: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run_command_line(["validate-mounts", "--cluster", "demo", "--via", "ssm"]) == 2
    assert "session-manager-plugin is not on PATH" in capsys.readouterr().err


def test_hashed_names_of_known_hosts(tmp_path: Path) -> None:
    """Lines that ssh-keygen -H made of `10.1.0.5` and `[10.1.0.6]:2222`, and lines that say nothing."""
    import subprocess

    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    public = " ".join((tmp_path / "key.pub").read_text().split()[:2])
    path = tmp_path / "known_hosts"
    path.write_text(f"10.1.0.5 {public}\n[10.1.0.6]:2222 {public}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, stderr=subprocess.DEVNULL)
    with path.open("a") as file:
        file.write(f"# 10.1.0.7 {public}\n@cert-authority 10.1.0.8 {public}\n|1|broken {public}\n")
        file.write("10.1.0.9\n10.1.0.9 ssh-x y\n")
    assert "10.1.0.5" not in path.read_text()
    known = KnownHosts(path)
    assert [len(known.keys(name)) for name in ("10.1.0.5", "[10.1.0.6]:2222", "10.1.0.6")] == [1, 1, 0]
    assert all(known.keys(f"10.1.0.{last}") == [] for last in (7, 8, 9))
