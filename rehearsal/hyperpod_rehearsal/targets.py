"""From what a person types to a node of state.json, and what can be done to it from outside."""

from __future__ import annotations

import time
import uuid
from typing import Any, Dict, List, Optional

from hyperpod_kit.environment import HPK_KNOWN_HOSTS, HPK_SSH_KEY, HPK_SSH_USER
from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.model.states import Role
from hyperpod_kit.system.process import Process, identify_unless_gone_or_zombie, is_alive
from hyperpod_rehearsal.credentials.keys import Keys
from hyperpod_rehearsal.machines import processes
from hyperpod_rehearsal.records import state as records
from hyperpod_rehearsal.records.layout import Layout


def all_nodes(state: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Nodes of all clusters, each with `cluster` added."""
    return [{**node, "cluster": cluster["name"]} for cluster in state["clusters"] for node in cluster["nodes"]]


def find_node(state: Dict[str, Any], node_selector: str) -> Dict[str, Any]:
    """The node that `text` names: instance id, host name, address, `group/index` or `controller`.

    Raises RehearsalError when none or more than one is meant.
    """
    if node_selector.endswith(".ec2.internal"):
        name = node_selector[: -len(".ec2.internal")]
    else:
        name = node_selector
    matches = [
        node
        for node in all_nodes(state)
        if name in (node["instance_id"], node["host"], node["ip"], node["place"])
        or (name == Role.CONTROLLER and node["role"] == "Controller")
    ]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        node_names = ", ".join(node["place"] for node in all_nodes(state)) or "none"
        raise RehearsalError(f"no node {node_selector}; there are: {node_names}", hint="hyperpod-kit rehearse status")
    several = ", ".join(f"{node['instance_id']} of {node['cluster']}" for node in matches)
    raise RehearsalError(f"{node_selector} means more than one node: {several}")


def supervisor_process(node: Dict[str, Any]) -> Process:
    """The systemd-nspawn process of a node."""
    return Process(node["pid"], node["pid_started"])


def is_running(node: Dict[str, Any]) -> bool:
    """Whether the node's machine runs."""
    return bool(node["pid"]) and is_alive(supervisor_process(node))


def kill_machine(node: Dict[str, Any]) -> None:
    """SIGKILL the whole machine, as a power failure would. Raises RehearsalError when it does not run."""
    if is_running(node):
        leaders = processes.children(node["pid"])
    else:
        leaders = []
    if not leaders:
        raise RehearsalError(
            f"{node['place']} ({node['instance_id']}) does not run", hint="hyperpod-kit rehearse status"
        )
    # The machine's PID 1: with it the kernel ends every process of the machine's pid namespace.
    processes.send_signal(identify_unless_gone_or_zombie(leaders[0]))
    if not processes.wait_for_exit(supervisor_process(node), 10.0):
        raise RehearsalError(f"{node['place']} ({node['instance_id']}) still ends after 10 s")


def give_spot_notice(layout: Layout, node: Dict[str, Any], seconds: float) -> None:
    """Have EC2 take a node's Spot instance back, with a notice of so many seconds (EC2 gives two minutes)."""
    market = records.read_own_json_object_or_none(layout.market_file) or {}
    notices = {**market.get("notices", {}), node["instance_id"]: time.time() + seconds}
    records.write_json(layout.market_file, {**market, "notices": notices})


def set_capacity(layout: Layout, instances: Optional[int]) -> None:
    """Say how many instances EC2 still has from now on, None for any number."""
    market = records.read_own_json_object_or_none(layout.market_file) or {}
    market.pop("capacity", None)
    if instances is not None:
        market["capacity"] = {"id": uuid.uuid4().hex, "instances": instances}
    records.write_json(layout.market_file, market)


def ssh_command(layout: Layout, node: Dict[str, Any], command: List[str], tty: bool) -> List[str]:
    """An ssh command line that verifies the node's host key; `command` are shell words."""
    return [
        "ssh",
        *(["-t"] if tty else []),
        "-i",
        str(layout.ssh_key),
        "-o",
        "IdentitiesOnly=yes",
        "-o",
        f"UserKnownHostsFile={layout.known_hosts}",
        "-o",
        "GlobalKnownHostsFile=/dev/null",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "BatchMode=yes",
        "-o",
        "LogLevel=ERROR",
        "-o",
        "ConnectTimeout=10",
        f"root@{node['ip']}",
        *command,
    ]


def shell_environment(layout: Layout, state: Dict[str, Any]) -> Dict[str, str]:
    """Return the variables with which hyperpod-kit, boto3 and AWS's CLI use the rehearsal. Raises RehearsalError."""
    from hyperpod_rehearsal.platform.node_files import aws_environment

    return {
        **aws_environment(state["endpoint"], Keys.load(layout.root).admin),
        HPK_SSH_KEY: str(layout.ssh_key),
        HPK_SSH_USER: "root",
        HPK_KNOWN_HOSTS: str(layout.known_hosts),
    }


def read_node_logs(layout: Layout, state: Dict[str, Any], node_or_instance_id: str) -> list[tuple[str, str]]:
    """(name, content) of the logs of a node, or of an instance that is gone. Raises RehearsalError."""
    from hyperpod_rehearsal.machines.machine import RETAINED_LOGS

    retained_logs = layout.retained_logs / node_or_instance_id
    if node_or_instance_id.startswith("i-") and retained_logs.is_dir():
        paths = sorted(retained_logs.iterdir())
    else:
        directory = layout.nodes / find_node(state, node_or_instance_id)["instance_id"]
        paths = [directory / name for name in RETAINED_LOGS if (directory / name).is_file()]
    return [(path.name, path.read_text(errors="replace")) for path in paths]
