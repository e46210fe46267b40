"""list-clusters, list-cluster-nodes, delete-node, and whose account is asked."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator

import pytest

from tests.unit.cli.conftest import put_cluster

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

BOTH = {"controller-machine": 1, "worker-group": 3}


@pytest.fixture
def made(cloud: Cloud, project: Path, hk: Hk) -> Iterator[Cloud]:
    cloud.control.script = [("InService", BOTH, "")]
    put_cluster(cloud.control, hk)
    yield cloud


def test_clusters_of_a_region(made: Cloud, hk: Hk) -> None:
    said = hk("list-clusters", "--json")
    assert said.code == 0
    [one] = json.loads(said.out)["clusters"]
    assert (one["name"], one["status"], one["created"]) == ("demo", "InService", "2026-01-01 00:00:00Z")
    assert hk("delete-cluster", "--yes").code == 0
    none = hk("list-clusters")
    assert (none.code, none.out, none.err) == (0, "", "0 clusters in us-east-1\n")


def test_through_a_pipe_a_row_is_a_line_of_words(made: Cloud, hk: Hk) -> None:
    shown = hk("list-cluster-nodes")
    _, head, *rows = shown.out.splitlines()
    assert head.split() == ["NODE", "GROUP", "ADDRESS", "TYPE", "STATE", "LAUNCHED"] and len(rows) == 4
    assert rows[0].split()[:3] == ["i-00000000000000000", "controller-machine", "10.0.0.1"]
    assert rows[0].split()[-2:] == ["2026-01-01", "00:00:00Z"] and shown.out.isascii()


def test_some_of_the_nodes(made: Cloud, hk: Hk) -> None:
    workers = hk("list-cluster-nodes", "--group", "worker-group", "--state", "running", "--json")
    assert {node["group"] for node in json.loads(workers.out)["nodes"]} == {"worker-group"}
    failed = hk("list-cluster-nodes", "--state", "Failure")
    assert failed.code == 0 and "0 of 4 nodes" in failed.err
    unknown = hk("list-cluster-nodes", "--group", "gpus")
    assert unknown.code == 2 and "expected one of controller-machine, worker-group" in unknown.err


def test_a_node_is_deleted_and_one_in_use_is_named(made: Cloud, hk: Hk) -> None:
    nodes = [node["instance_id"] for node in json.loads(hk("list-cluster-nodes", "--json").out)["nodes"]]
    meant = hk("delete-node", "worker-group/2", "--dry-run")
    assert meant.code == 0 and nodes[3] in meant.err and made.control.deleted == []
    made.control.busy = {nodes[2]}
    done = hk("delete-node", nodes[3], nodes[2], "--yes", "--json")
    assert done.code == 1 and made.control.deleted == [nodes[3]]
    assert json.loads(done.out)["deleted"] == [nodes[3]]
    assert f"{nodes[2]}: NodeIdInUse: another operation works on it" in done.err


def test_another_account_and_another_file(made: Cloud, project: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "")
    unknown = hk("--profile", "nobody", "list-clusters")
    assert unknown.code == 3 and "nobody" in unknown.err
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.chdir("/")
    assert hk("list-cluster-nodes").code == 3
    monkeypatch.setenv("HPK_CONFIG", str(project / "provisioning_parameters.json"))
    assert "4 nodes" in hk("list-cluster-nodes").err
    assert hk("delete-node", "worker-group/0", "--dry-run").code == 0
    # Not for another cluster than its own.
    assert "4 nodes" in hk("list-cluster-nodes", "--cluster", "demo", "--region", "us-east-1").err


@pytest.mark.parametrize("variable", ["NO_COLOR=1", "TERM=dumb", "TERM=xterm"])
def test_colours_are_for_terminals_that_want_them(project: Path, variable: str) -> None:
    name, _, value = variable.partition("=")
    ours, its = pty.openpty()
    env = {**os.environ, "TERM": "xterm", name: value}
    env = {key: word for key, word in env.items() if key != "NO_COLOR" or variable == "NO_COLOR=1"}
    (project / "wrong.json").write_text('{"of no meaning": 1}')
    command = [sys.executable, "-m", "hyperpod_kit.cli.main", "validate", "wrong.json"]
    with subprocess.Popen(command, stdout=its, stderr=its, env=env) as process:
        os.close(its)
        said = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # what a terminal's other end gives when it is closed
                break
            said += part
    os.close(ours)
    assert process.returncode == 1 and b"HPK-C001" in said, said
    assert (b"\x1b[" in said) == (variable == "TERM=xterm"), said


def test_a_pipe_is_read_and_one_that_nobody_writes_to_is_an_error(
    project: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("pipe.json")
    monkeypatch.setattr("hyperpod_kit.config.reading.document.PIPE_SECONDS", 0.2)
    silent = hk("validate", "pipe.json")
    assert silent.code == 2 and "is a pipe, and nothing has come" in silent.err
    process = subprocess.run(
        ["bash", "-c", '"$0" -m hyperpod_kit.cli.main validate <(cat provisioning_parameters.json)', sys.executable],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr


def test_what_changes_among_the_nodes_is_said(made: Cloud, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        made.control.script = [("Updating", {"controller-machine": 1, "worker-group": 2}, "")]
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("hyperpod_kit.cli.cluster.list_commands.time.sleep", sleep)
    watched = hk("list-cluster-nodes", "--watch", "7")
    assert looks == [7.0] * 3 and watched.code == 130
    assert watched.out.splitlines()[-1].endswith("worker-group i-00000001000000002: gone, was Running")
    looks.clear()
    lines = [json.loads(line) for line in hk("list-cluster-nodes", "--watch", "7", "--json").out.splitlines()]
    assert [len(line["nodes"]) for line in lines] == [3, 3, 3]
