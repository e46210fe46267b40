"""validate-mounts that goes on: what it says, what one look of many nodes shows, and how Ctrl-C ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator
from xml.etree import ElementTree as Xml

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.remote.reports import fleet_status
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.aws import ListedNodes, endpoint
from tests.support.wait import until

if TYPE_CHECKING:
    from tests.unit.remote.conftest import Network

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ListedNodes]:
    """A cluster whose nodes have their addresses in their names."""
    made = ListedNodes("w", instance_id="i-{}", named=True)
    monkeypatch.chdir(tmp_path)
    with endpoint(monkeypatch, StoredBuckets(tmp_path / "s3"), made):
        yield made


def report(index: int, state: str = "ok") -> str:
    return json.dumps(
        {
            "node": "n",
            "instance_id": f"i-{index}",
            "bundle_id": "b",
            "checked_at": 0,
            "mounts": [{"name": "data", "kind": "nvme", "path": "/mnt/data", "state": state}],
        }
    )


def words(network: Network, *more: str) -> list[str]:
    given = network.settings
    return [
        "validate-mounts",
        "--cluster",
        "demo",
        "--ssh-key",
        str(given.key),
        "--ssh-port",
        str(given.port),
        "--known-hosts",
        str(given.known_hosts),
        *more,
    ]


def begin(network: Network, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hyperpod_kit.cli.main", *words(network, *more)],
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_many_nodes_are_counted_and_each_is_a_row_on_demand(
    network: Network, control: ListedNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control.addresses = [
        network.node(lambda command, index=index: (0, report(index), "")).address  # type: ignore[misc]
        for index in range(13)
    ]
    assert run_command_line(words(network, "--junit", "mounts.xml")) == 0
    out, err = capsys.readouterr()
    row = next(line for line in out.splitlines() if "/mnt/data" in line)
    assert row.split() == ["data", "w", "/mnt/data", "13", "13"] and "13 mounts on 13 nodes: all healthy" in err
    assert Xml.parse(tmp_path / "mounts.xml").getroot().get("tests") == "13"
    assert run_command_line(words(network, "--nodes")) == 0
    assert capsys.readouterr().out.count("/mnt/data") == 13
    assert run_command_line(words(network, "--junit", "nowhere/mounts.xml")) == 2
    assert "cannot write nowhere/mounts.xml: No such file" in capsys.readouterr().err


def test_watching_says_what_changes_and_ends_with_ctrl_c(network: Network, control: ListedNodes) -> None:
    state = ["ok"]
    control.addresses = [network.node(lambda command: (0, report(0, state[0]), "")).address]
    process = begin(network, "--watch", "1")
    assert process.stderr is not None and process.stdout is not None
    assert process.stderr.readline() == "asked: 1 node by ssh\n"
    assert "1 mount on 1 node: all healthy" in process.stderr.readline()
    state[0] = "stale"
    while "new: w i-0" not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    assert "data at /mnt/data is stale" in line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in err and err.rstrip().endswith("stopped")


def test_a_line_is_a_whole_look_in_json(
    network: Network, control: ListedNodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    control.addresses = [network.node(lambda command: (0, report(0), "")).address]
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 2:
            control.addresses = []  # a look that finds no nodes is no reason to stop looking
        if len(paused) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(fleet_status, "time", Clock(pause))
    assert run_command_line(words(network, "--watch", "30", "--json")) == 130
    out, err = capsys.readouterr()
    assert [json.loads(line)["healthy"] for line in out.splitlines()] == [True, True]
    assert "could not query the nodes: cluster demo has no nodes" in err
    assert all(25 < seconds <= 30 for seconds in paused)


class Clock:
    """The module `time`, but for its sleep."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def test_ctrl_c_waits_for_no_node(network: Network, control: ListedNodes) -> None:
    hangs = network.node(None)
    control.addresses = [hangs.address, network.silent()]
    process = begin(network, "--timeout", "60", "--connect-timeout", "60")
    until(lambda: hangs.commands or process.poll() is not None, what="question to the node")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and out == "" and err.strip() == "stopped"
