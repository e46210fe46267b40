"""How diagnose comes to the nodes: over ssh, by sessions where that is closed, and by what was sent where both are."""

from __future__ import annotations

from typing import Any, Iterator

import pytest

from hyperpod_kit.aws.sagemaker import SageMaker
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.connect.ssm_sessions import SsmSession, SsmSessions
from hyperpod_kit.remote.diagnosis.diagnose import Diagnosis, Failure, apply_sent_report
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.target import NodeTarget, SshSettings
from hyperpod_kit.remote.transports import transport_choice as module
from hyperpod_kit.remote.transports.transport_choice import open_ssh_or_ssm_connector
from tests.unit.remote.conftest import Network


class Shell:
    """A session whose plugin is a shell."""

    argv = ("/bin/sh", "-i")

    @property
    def environment(self) -> dict[str, str]:
        return {"PS1": "$ "}


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveCluster]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield LiveCluster("demo", "us-east-1", None, SageMaker("us-east-1"))


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the nodes that a session was begun with."""
    begun: list[str] = []

    def begin(target: NodeTarget) -> SsmSession:
        begun.append(target.instance_id)
        return SsmSession(Shell(), lambda: None)

    monkeypatch.setattr(module, "create_ssm_sessions", lambda cluster: SsmSessions(begin))
    return begun


def no_sessions(cluster: Any) -> Any:
    raise UsageError("the plugin is not on PATH")


def answers(network: Network) -> str:
    return network.node(lambda command: (0, "by ssh", "")).address


def test_ssh_where_it_answers_and_sessions_where_it_does_not(
    network: Network, live: LiveCluster, sessions: list[str]
) -> None:
    """The first nodes of the second group are dead, and that closes no way to the others of it."""
    dead = [NodeTarget(f"i-b{number}", "b", "", network.address()) for number in range(5)]
    targets = [
        NodeTarget("i-a", "a", "", answers(network)),
        *dead,
        NodeTarget("i-b9", "b", "", answers(network)),
        NodeTarget("i-c", "c", "", network.address()),
    ]
    said: list[str] = []
    with open_ssh_or_ssm_connector(live, network.settings, targets, said.append) as connect:
        for index in (0, 6):
            assert connect(targets[index]).run(["x"]).stdout == "by ssh"
        assert connect(targets[7]).run(["echo", "by", "session"]).stdout == "by session"
        with pytest.raises(HyperpodKitError, match="refuses the connection"):
            connect(targets[1]).run(["x"])
    assert set(sessions) == {"i-c"}
    assert len(said) == 1 and said[0].startswith("asked: 7 nodes by ssh, 1 node by SSM sessions; closed: ssh: root@")


def test_no_way_at_all_is_said_of_the_way(network: Network, live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "create_ssm_sessions", no_sessions)
    node = NodeTarget("i-a", "a", "", network.address())
    said: list[str] = []
    nowhere = SshSettings("root", network.known_hosts.with_name("nothing"), named=False)
    why = r"there are no host keys at .*; SSM sessions: the plugin is not on PATH"
    with open_ssh_or_ssm_connector(live, nowhere, [node], said.append) as connect, pytest.raises(
        HyperpodKitError, match=why
    ):
        connect(node)
    assert said[0].startswith("no transport reaches the nodes; closed: ssh: there are no host keys")
    named = SshSettings("root", network.known_hosts.with_name("nothing"))
    with pytest.raises(UsageError), open_ssh_or_ssm_connector(live, named, [node], said.append):
        pass


def test_what_a_node_has_sent_counts_where_nobody_can_ask_it() -> None:
    node = NodeTarget("i-a", "a", "", "10.0.0.1")
    found = Diagnosis(node, "", unreachable="ssh: there are no host keys")
    good, bad = (
        MountStatus("data", "nvme", "/mnt/data", state, detail="why") for state in (MountState.OK, MountState.STALE)
    )
    well = apply_sent_report(found, NodeReport(node, (good,), said_at=9.0))
    assert well.healthy and well.sent_at == 9.0
    sick = apply_sent_report(found, NodeReport(node, (bad,), said_at=9.0))
    assert not sick.healthy and sick.sick == ("data is stale: why",)
    broken = Diagnosis(node, "", unreachable="x", failures=(Failure("mount", "no", ""),))
    assert not apply_sent_report(broken, NodeReport(node, (good,), said_at=9.0)).healthy
