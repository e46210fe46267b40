"""Ways to a shell: SSM's name of a node, the plugin's command line, ssh's configuration."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.cluster.nodes import ClusterNode
from hyperpod_kit.cluster.session import (
    RESPONSE_VARIABLE,
    SshLogin,
    aws_cli_session_command,
    choose_default_node,
    render_ssh_config,
    require_not_removed,
    session_plugin_program,
    ssh_program,
    ssm_session_request,
)
from hyperpod_kit.errors import ClusterError, UsageError

ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abc123def456"
TOKEN = {"SessionId": "s-1", "TokenValue": "secret", "StreamUrl": "wss://x"}


def node(group: str, number: int, status: str = "Running", address: str = "") -> ClusterNode:
    return ClusterNode(group, f"i-{number:017x}", "ml.m5.large", status, "", address or f"10.0.0.{number}", "")


NODES = [node("head", 1), node("work", 2, "ShuttingDown"), node("work", 3), node("work", 4)]


def live(controller: str = "") -> dict[str, Any]:
    groups = [
        {"InstanceGroupName": name, **({"SlurmConfig": {"NodeType": "Controller"}} if name == controller else {})}
        for name in ("head", "work")
    ]
    return {"ClusterArn": ARN, "InstanceGroups": groups}


def test_the_target_has_the_clusters_id_and_not_its_name() -> None:
    assert ssm_session_request(NODES[0], live()) == {
        "Target": "sagemaker-cluster:abc123def456_head-i-00000000000000001"
    }
    tunnel = ssm_session_request(NODES[0], live(), 22)
    assert tunnel["DocumentName"] == "AWS-StartSSHSession" and tunnel["Parameters"] == {"portNumber": ["22"]}
    words = aws_cli_session_command(tunnel, "us-west-2")
    assert words[:3] == ("aws", "ssm", "start-session") and json.loads(words[-1]) == {"portNumber": ["22"]}


@pytest.mark.parametrize(
    "version, by_variable",
    [("1.2.707.0\n", True), ("1.2.498.0", True), ("1.2.497.0", False), ("1.1.61.0", False), ("what?", False)],
)
def test_the_token_is_no_argument_where_the_plugin_knows_better(version: str, by_variable: bool) -> None:
    start = session_plugin_program(TOKEN, {"Target": "t"}, region="us-west-2", endpoint="https://ssm", version=version)
    assert start.argv[0] == "session-manager-plugin" and start.argv[2:] == (
        "us-west-2",
        "StartSession",
        "",
        '{"Target": "t"}',
        "https://ssm",
    )
    given = start.environment.get(RESPONSE_VARIABLE) if by_variable else start.argv[1]
    assert json.loads(given or "") == TOKEN
    assert ("secret" in " ".join(start.argv)) is not by_variable


def test_the_controller_is_meant_when_nobody_is_named() -> None:
    assert choose_default_node(NODES, live("head"), None) == NODES[0]
    assert choose_default_node(NODES, live(), "head") == NODES[0]
    assert choose_default_node(NODES[2:3], live(), None) == NODES[2]
    with pytest.raises(UsageError, match="specify a node"):
        choose_default_node(NODES, live(), None)


def test_no_session_with_a_node_that_goes() -> None:
    with pytest.raises(ClusterError, match="is ShuttingDown"):
        require_not_removed(NODES[1])
    require_not_removed(node("work", 9, "Failure"))  # there a look is worth most


def test_ssh_straight_to_the_address() -> None:
    access = SshLogin("root", "/k/id", "/k/known", 2222)
    argv = ssh_program(NODES[2], access, ["ls", "a b"]).argv
    assert argv[0] == "ssh" and argv[-2:] == ("10.0.0.3", "ls 'a b'")
    assert "IdentityFile=/k/id" in argv and "Port=2222" in argv and "UserKnownHostsFile=/k/known" in argv
    assert ssh_program(NODES[2], SshLogin("root")).argv == ("ssh", "-o", "User=root", "10.0.0.3")
    with pytest.raises(ClusterError, match="returned no address"):
        ssh_program(ClusterNode("w", "i-1", "", "Running", "", "", ""), access)


@pytest.mark.parametrize("direct", [False, True])
def test_ssh_itself_reads_the_configuration(tmp_path: Path, direct: bool) -> None:
    """`ssh -G` prints what ssh makes of it. An index counts what is listed, gone nodes too, as NODE does."""
    access = SshLogin("ubuntu", "/my keys/id")
    wanted = [one.instance_id for one in NODES if not one.is_shutting_down_or_gone]
    file = tmp_path / "config"
    file.write_text(
        render_ssh_config("demo", "us-west-2", NODES, wanted, access, program="/opt/a b/hyperpod-kit", direct=direct)
    )
    assert file.read_text().count("Host ") == 3 and "demo-work-0" not in file.read_text()
    done = subprocess.run(["ssh", "-F", str(file), "-G", "demo-work-1"], capture_output=True, text=True, timeout=60)
    said = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert said["user"] == "ubuntu" and said["identityfile"] == "/my keys/id", done.stderr
    if direct:
        assert said["hostname"] == "10.0.0.3" and said.get("proxycommand", "none") == "none"
    else:
        assert said["proxycommand"] == (
            "'/opt/a b/hyperpod-kit' connect work/1 --cluster demo --region us-west-2 --proxy %p"
        )
        assert said["hostkeyalias"] == NODES[2].instance_id
