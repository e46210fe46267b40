"""validate-mounts as a user types it: a cluster behind an HTTP endpoint, its nodes behind ssh, sound and not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.reports.report import format_age, mount_rows_table
from hyperpod_kit.remote.reports.validate_mounts import validate_mounts
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.transport import NodeResponse, Progress
from tests.support.aws import as_client
from tests.support.http import aws_json

if TYPE_CHECKING:
    from tests.unit.remote.conftest import Network

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
FSX = MountStatus("fsx", "lustre", "/fsx", MountState.OK, "10.0.9.1@tcp:/abcdefgh")
HOME = MountStatus("home", "efs", "/efs/trainer", MountState.OK, "fs-0123456789abcdef0 via fsap-0123456789abcdef0")
DATA = MountStatus("data", "mountpoint-s3", "/mnt/data", MountState.OK, "sagemaker-hyperpod-kit-data/corpus/")
DEAD = MountStatus("data", "mountpoint-s3", "/mnt/data", MountState.STALE, "", "Transport endpoint is not connected")


def report(*mounts: MountStatus, index: int = 0, bundle: str = "0123456789abcdef") -> str:
    """What `hyperpod-kit node mounts --json` prints on the node of that index."""
    return json.dumps(
        {
            "node": "n",
            "instance_id": f"i-{index:017x}",
            "bundle_id": bundle,
            "role": "compute",
            "checked_at": 0,
            "mounts": [{**asdict(mount), "checked_at": 0} for mount in mounts],
        }
    )


class Nodes:
    """The two calls of SageMaker that validate-mounts makes, over real HTTP; pages of two nodes."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.states: dict[int, str] = {}

    def node(self, index: int) -> dict[str, Any]:
        group = "controller-machine" if index == 0 else "worker-group"
        return {
            "InstanceGroupName": group,
            "InstanceId": f"i-{index:017x}",
            "InstanceType": "ml.c5.xlarge",
            "LaunchTime": 1.0,
            "InstanceStatus": {"Status": self.states.get(index, "Running")},
        }

    def answer(self, operation: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if operation == "DescribeClusterNode":
            index = int(request["NodeId"][2:], 16)
            return 200, {"NodeDetails": {**self.node(index), "PrivatePrimaryIp": self.addresses[index]}}
        assert operation == "ListClusterNodes"
        first = int(request.get("NextToken", "0"))
        page = {"ClusterNodeSummaries": [self.node(index) for index in range(len(self.addresses))][first : first + 2]}
        return 200, {**page, "NextToken": str(first + 2)} if first + 2 < len(self.addresses) else page


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    made = Nodes()
    as_client(monkeypatch)
    with aws_json(made.answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield made


def ssh(network: Network) -> list[str]:
    settings = network.settings
    return [
        "--ssh-user",
        settings.user,
        "--ssh-key",
        str(settings.key),
        "--ssh-port",
        str(settings.port),
        "--known-hosts",
        str(settings.known_hosts),
        "--connect-timeout",
        "3",
    ]


def always(code: int, out: str, err: str = "") -> Callable[[str], tuple[int, str, str]]:
    return lambda command: (code, out, err)


def test_a_healthy_cluster(network: Network, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    servers = [network.node(always(0, report(FSX, HOME, DATA, index=index))) for index in range(3)]
    nodes.addresses = [server.address for server in servers]
    assert run_command_line(["validate-mounts", str(EXAMPLE), *ssh(network)]) == 0
    captured = capsys.readouterr()
    assert "9 mounts on 3 nodes: all healthy" in captured.err
    assert captured.out.count("10.0.9.1@tcp:/abcdefgh") == 3
    assert [server.commands for server in servers] == [
        ["/opt/hyperpod-kit/current/bin/hyperpod-kit node mounts --json"]
    ] * 3


def test_every_way_to_fail_is_a_row_and_none_hides_another(
    network: Network, nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.addresses = [
        network.node(always(0, report(FSX, HOME, DATA))).address,
        network.node(always(1, report(FSX, HOME, DEAD, index=1))).address,
        network.node(always(0, report(FSX, HOME, DATA, index=2)), key="other").address,
        network.silent(),
        network.address(),
        network.node(always(127, "", "bash: no such file")).address,
        network.node(always(0, "Welcome!\n" + report(FSX, HOME, index=6, bundle="f" * 16))).address,
        network.node(always(0, "not JSON")).address,
        network.address(),
        network.address(),
    ]
    nodes.states = {8: "Pending", 9: "ShuttingDown"}
    assert run_command_line(["validate-mounts", str(EXAMPLE), *ssh(network)]) == 1
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    print(captured.out, captured.err)
    for expected in (
        "worker-group i-00000000000000001 (%s): data at /mnt/data is stale: Transport endpoint is not connected",
        "worker-group i-00000000000000002 (%s): root@%s shows a host key other than the one",
        "worker-group i-00000000000000003 (%s): root@%s does not respond",
        "worker-group i-00000000000000004 (%s): root@%s refuses the connection",
        "worker-group i-00000000000000005 (%s): hyperpod-kit is not installed on it",
        "worker-group i-00000000000000006 (%s): data at /mnt/data is absent: it is in the configuration",
        "worker-group i-00000000000000007 (%s): its answer is not a report: not JSON",
        "worker-group i-00000000000000008 (%s): the node is Pending",
    ):
        index = int(expected.split()[1][2:], 16)
        address = nodes.addresses[index]
        wanted = expected.replace("root@%s", f"root@{address}:{network.port}").replace("%s", address)
        assert any(line.startswith(wanted) for line in lines), f"{wanted}\n{captured.err}"
    assert "nodes run different bundles: 0123456789abcdef on 2, ffffffffffffffff on 1" in captured.err
    assert lines[-1] == "9 mounts on 9 nodes: 2 not healthy, 6 nodes without an answer; 1 of 9 nodes are healthy"
    assert captured.out.count("no answer") == 6
    assert "i-00000000000000009" not in captured.out


def test_json_is_alone_on_stdout(network: Network, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    nodes.addresses = [network.node(always(1, report(FSX, HOME, DEAD))).address]
    assert run_command_line(["validate-mounts", "--cluster", "demo", "--json", *ssh(network)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["cluster"], answer["healthy"]) == ("demo", False)
    assert [mount["state"] for mount in answer["nodes"][0]["mounts"]] == ["ok", "ok", "stale"]


def test_no_answer_from_aws_is_no_verdict(
    network: Network, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network.node(always(0, ""))
    for name, value in (
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("AWS_MAX_ATTEMPTS", "1"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
    ):
        monkeypatch.setenv(name, value)
    assert run_command_line(["validate-mounts", str(EXAMPLE), *ssh(network)]) == 3
    assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err


NODE = NodeTarget("i-00000000000000000", "g", "compute", "10.0.0.1")


class Said:
    """A transport by which every node says the same."""

    description = "by heart"

    def __init__(self, *responses: NodeResponse) -> None:
        self.responses = responses

    def query_mount_reports(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        return [self.responses[number % len(self.responses)] for number in range(len(targets))]


def test_an_optional_mount_may_be_sick() -> None:
    sick = MountStatus("data", "mountpoint-s3", "/mnt/data", MountState.HUNG, required=False)
    [entry] = validate_mounts([NODE], Said(NodeResponse(report(sick), 1)), expected={})
    assert entry.healthy and not entry.mounts[0].healthy


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s ago"), (5.4, "5 s ago"), (600, "10 min ago"), (86400, "24 h ago")]
)
def test_age(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


@pytest.mark.parametrize("width", [80, 160])
def test_no_id_is_broken_on_any_screen(width: int) -> None:
    target = NodeTarget("i-00000001000000001", "worker-group", "compute", "10.0.0.1")
    reports = [NodeReport(target, (FSX, HOME, DEAD)), NodeReport(target, error="root@10.0.0.1 does not respond")]
    shown = mount_rows_table("demo", reports, 10.0).format(width)
    assert shown.count("i-00000001000000001") == 4 and shown.count("worker-group") == (4 if width == 160 else 0)
    assert "10.0.9.1@tcp:/abcdefgh" in shown.replace("\n", "") or width == 80
    assert max(map(len, shown.splitlines())) <= width
