"""Ways to a shell on a node: a session of SSM's, or ssh. What has to be started, and nothing started here.

HyperPod's nodes have no way in from outside but SSM. `aws ssm start-session` is two things: a call that gives a token,
and session-manager-plugin, which talks with it; the call is made here, so that its errors are ours, and the AWS CLI is
not needed. ssh goes through such a session too (AWS-StartSSHSession), or straight to the address where there is a way.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Any, Collection, Mapping, Optional, Sequence

from hyperpod_kit.aws.ssm import node_session_target, session_request
from hyperpod_kit.cluster.nodes import REMOVED_STATES, RUNNING, ClusterNode
from hyperpod_kit.errors import ClusterError, UsageError

PLUGIN = "session-manager-plugin"
SSH_DOCUMENT = "AWS-StartSSHSession"
RESPONSE_VARIABLE = "AWS_SSM_START_SESSION_RESPONSE"
_FIRST_WITH_VARIABLE = (1, 2, 498)
"""Plugins up to 1.2.497.0 take the token as an argument, which every user of the machine can read (awscli's rule)."""


@dataclass(frozen=True)
class Program:
    """A program to start in place of this one. `environment`: what is added to it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def choose_default_node(
    nodes: Sequence[ClusterNode], live: Mapping[str, Any], controller: Optional[str]
) -> ClusterNode:
    """Return the node to use when none is named: the first Slurm controller that runs, or the only node
    there is.

    live: DescribeCluster's answer; controller: the configuration's controller group. Raises
    UsageError.
    """
    present = [node for node in nodes if node.status not in REMOVED_STATES]
    groups = {
        group["InstanceGroupName"]
        for group in live["InstanceGroups"]
        if (group.get("SlurmConfig") or {}).get("NodeType") == "Controller"
    } or {controller}
    candidates = [node for node in present if node.group in groups] or (present if len(present) == 1 else [])
    if not candidates:
        raise UsageError(
            "specify a node: the controller is not known", hint="hyperpod-kit list-cluster-nodes, then NODE"
        )
    return next((head for head in candidates if head.status == RUNNING), candidates[0])


def require_not_removed(node: ClusterNode) -> None:
    """Raise ClusterError for a node that is being shut down or is gone, which no session reaches."""
    if node.status in REMOVED_STATES:
        raise ClusterError(f"{node.instance_id} is {node.status}", hint="hyperpod-kit list-cluster-nodes")


def ssm_session_request(node: ClusterNode, live: Mapping[str, Any], ssh_port: Optional[int] = None) -> dict[str, Any]:
    """StartSession's request: a login shell, or with `ssh_port` a tunnel to sshd."""
    where = node_session_target(live["ClusterArn"], node.group, node.instance_id)
    if ssh_port:
        return session_request(where, SSH_DOCUMENT, {"portNumber": [str(ssh_port)]})
    return session_request(where)


def session_plugin_program(
    token: Mapping[str, str], request: Mapping[str, Any], *, region: str, endpoint: str, version: str
) -> Program:
    """session-manager-plugin with a session's token, as the AWS CLI starts it. `version`: what `--version` says."""
    response, environment = json.dumps(dict(token)), {}
    if _parse_version_or_empty(version) >= _FIRST_WITH_VARIABLE:
        response, environment = RESPONSE_VARIABLE, {RESPONSE_VARIABLE: response}
    # The profile's place stays empty: the plugin asks AWS again with the credentials of the environment.
    return Program((PLUGIN, response, region, "StartSession", "", json.dumps(dict(request)), endpoint), environment)


def aws_cli_session_command(request: Mapping[str, Any], region: str) -> tuple[str, ...]:
    """Make the command of the AWS CLI that does the same, to be typed elsewhere."""
    command = ["aws", "ssm", "start-session", "--region", region, "--target", request["Target"]]
    if "DocumentName" in request:
        command += ["--document-name", request["DocumentName"], "--parameters", json.dumps(request["Parameters"])]
    return tuple(command)


@dataclass(frozen=True)
class SshLogin:
    """How to log in. Empty or None: what ssh itself does."""

    user: str
    key: str = ""
    known_hosts: str = ""
    port: int = 22

    @property
    def ssh_config_options(self) -> list[tuple[str, str]]:
        """ssh_config's words for it."""
        given = [("User", self.user), ("IdentityFile", self.key), ("UserKnownHostsFile", self.known_hosts)]
        pairs = [(name, value) for name, value in given if value]
        if self.key:
            pairs.append(("IdentitiesOnly", "yes"))
        if self.port != 22:
            pairs.append(("Port", str(self.port)))
        return pairs


def ssh_program(node: ClusterNode, login: SshLogin, command: Sequence[str] = ()) -> Program:
    """ssh straight to the node's address. Raises ClusterError when AWS tells none."""
    if not node.address:
        raise ClusterError(f"AWS returned no address of {node.instance_id}", hint="hyperpod-kit list-cluster-nodes")
    options = [word for name, value in login.ssh_config_options for word in ("-o", f"{name}={value}")]
    argv = ["ssh", *options, node.address]
    if command:
        argv.append(shlex.join(command))
    return Program(tuple(argv))


def render_ssh_config(
    cluster: str,
    region: str,
    nodes: Sequence[ClusterNode],
    selected_ids: Collection[str],
    login: SshLogin,
    *,
    program: str,
    direct: bool,
) -> str:
    """Host blocks for ~/.ssh/config. The way there is looked up at each login, so a replaced node is found by its name.

    nodes: all of the cluster, which their index depends on; selected_ids: of those to write down. direct: straight to
    the address in place of a tunnel through SSM; the address is then the one of now.
    """
    blocks = []
    counts: dict[str, int] = {}
    for node in nodes:
        index = counts[node.group] = counts.get(node.group, -1) + 1
        if node.instance_id not in selected_ids or (direct and not node.address):
            continue
        lines = [f"Host {cluster}-{node.group}-{index}"]
        if direct:
            lines.append(f"HostName {node.address}")
        else:
            way = (program, "connect", f"{node.group}/{index}", "--cluster", cluster, "--region", region)
            # HostKeyAlias: behind a tunnel every node would else be known by the name of its block only.
            lines += [f"HostKeyAlias {node.instance_id}", f"ProxyCommand {shlex.join(way)} --proxy %p"]
        lines += [f"{name} {_quote_if_spaced(value)}" for name, value in login.ssh_config_options]
        blocks.append("\n    ".join(lines))
    if blocks:
        return "\n\n".join(blocks) + "\n"
    return ""


def _quote_if_spaced(value: str) -> str:
    if " " in value:
        return f'"{value}"'
    return value


def _parse_version_or_empty(version: str) -> tuple[int, ...]:
    """(1, 2, 707) of `1.2.707.0`; () for words that are no version."""
    try:
        return tuple(int(part) for part in version.strip().split(".")[:3])
    except ValueError:
        return ()
