"""The nodes of a cluster, as AWS sees them, and their replacement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from hyperpod_kit.aws.errors import NOT_FOUND
from hyperpod_kit.aws.parallel import map_in_order
from hyperpod_kit.aws.sagemaker import Batched, SageMaker
from hyperpod_kit.cluster.times import format_utc
from hyperpod_kit.errors import Absent, AwsError, UsageError

RUNNING = "Running"
REMOVED_STATES = ("ShuttingDown", "NotFound")
"""The state of a node that serves, and states of nodes that nobody waits for any more."""

MOST_CHECKED = 500
"""Instances in one entry of StartClusterHealthCheck."""

LOOKUPS = 8
_HOST = re.compile(r"ip-(\d+)-(\d+)-(\d+)-(\d+)(\.|$)", re.IGNORECASE)


@dataclass(frozen=True)
class ClusterNode:
    """One node. `address`: its private IPv4 address, empty when AWS does not tell it yet; `launched`: in UTC;
    `capacity`: Spot or OnDemand, empty where AWS was not asked about the node or does not say."""

    group: str
    instance_id: str
    instance_type: str
    status: str
    message: str
    address: str
    launched: str
    capacity: str = ""

    @property
    def is_shutting_down_or_gone(self) -> bool:
        """Whether AWS is shutting the node down or no longer knows it."""
        return self.status in REMOVED_STATES


def list_nodes(sagemaker: SageMaker, cluster: str, *, fetch_addresses: bool = True) -> list[ClusterNode]:
    """All nodes, by group and launch time. Raises AwsError, Unreachable.

    With `addresses`, a node whose host name is not made of its address is described: only that answer holds it, and
    AWS takes few such calls a second.
    """
    summaries = sagemaker.list_nodes(cluster)
    details: list[dict[str, Any]] = [{}] * len(summaries)
    without_address = [
        number for number, summary in enumerate(summaries) if fetch_addresses and not _address_from_host_name(summary)
    ]
    described = map_in_order(
        lambda number: _describe_node_or_empty_if_gone(sagemaker, cluster, summaries[number]), without_address, LOOKUPS
    )
    for number, detail in zip(without_address, described):
        details[number] = detail
    nodes = [_to_cluster_node(summary, detail) for summary, detail in zip(summaries, details)]
    return sorted(nodes, key=lambda node: (node.group, _address_sort_key(node.address), node.instance_id))


def describe_node_changes(before: Sequence[ClusterNode], after: Sequence[ClusterNode]) -> list[str]:
    """A line for each node that has come, has gone, or is in another state: `workers i-1: Pending, now Running`."""
    then = {node.instance_id: node for node in before}
    now = {node.instance_id: node for node in after}
    lines = [f"{node.group} {name}: gone, was {node.status}" for name, node in then.items() if name not in now]
    for name, node in now.items():
        reason = ""
        if node.message:
            reason = f": {node.message}"
        if name not in then:
            lines.append(f"{node.group} {name}: new, {node.status}{reason}")
        elif (then[name].status, then[name].message) != (node.status, node.message):
            lines.append(f"{node.group} {name}: {then[name].status}, now {node.status}{reason}")
    return lines


def is_instance_id(name: str) -> bool:
    """Whether a name has the form of an instance id, of a node that is there or of one that is gone."""
    return name.startswith("i-")


def start_health_check(
    sagemaker: SageMaker, cluster: str, nodes: Sequence[ClusterNode], checks: Sequence[str]
) -> Batched:
    """Begin deep health checks of nodes, in one call. Raises AwsError, which refuses all of them, Unreachable."""
    ids_by_group: dict[str, list[str]] = {}
    for node in nodes:
        ids_by_group.setdefault(node.group, []).append(node.instance_id)
    sagemaker.start_health_check(
        cluster,
        [
            {
                "InstanceGroupName": group,
                "InstanceIds": ids[start : start + MOST_CHECKED],
                "DeepHealthChecks": list(checks),
            }
            for group, ids in ids_by_group.items()
            for start in range(0, len(ids), MOST_CHECKED)
        ],
    )
    return [node.instance_id for node in nodes], []


def slurm_node_name(address: str) -> str:
    """Return the name of the node with this address in Slurm, `ip-10-1-2-3`; "" without an address."""
    if address:
        return f"ip-{address.replace('.', '-')}"
    return ""


def resolve_nodes(nodes: Sequence[ClusterNode], names: Sequence[str]) -> list[ClusterNode]:
    """Nodes by instance id, address, host name (Slurm's, or with a domain), or `group/index`; each of them once.

    Raises UsageError for a name of no node, or of several.
    """
    resolved: dict[str, ClusterNode] = {}
    for name in names:
        node = _resolve_node(nodes, name)
        resolved[node.instance_id] = node
    return list(resolved.values())


def sort_for_removal(nodes: Sequence[ClusterNode], job_counts_by_instance_id: Mapping[str, int]) -> list[ClusterNode]:
    """Sort nodes in the order in which they may go.

    Those that do not run, then by how many jobs they have (`jobs`: instance id -> number), of equal ones the last in
    the list first.
    """
    return sorted(
        reversed(nodes), key=lambda node: (node.status == RUNNING, job_counts_by_instance_id.get(node.instance_id, 0))
    )


def replace_nodes(sagemaker: SageMaker, cluster: str, nodes: Sequence[ClusterNode]) -> Batched:
    """Ask AWS to replace nodes; return which are being replaced and which AWS refuses.

    Raises AwsError, Unreachable.
    """
    return sagemaker.replace_nodes(cluster, _unique_instance_ids(nodes))


def reboot_nodes(sagemaker: SageMaker, cluster: str, nodes: Sequence[ClusterNode]) -> Batched:
    """Ask AWS to restart nodes; return which are being restarted and which AWS refuses.

    Raises AwsError, Unreachable.
    """
    return sagemaker.reboot_nodes(cluster, _unique_instance_ids(nodes))


def delete_nodes(sagemaker: SageMaker, cluster: str, nodes: Sequence[ClusterNode]) -> Batched:
    """Ask AWS to delete nodes, none of which comes back; return which are being deleted and which AWS
    refuses.

    Raises AwsError, Unreachable.
    """
    return sagemaker.delete_nodes(cluster, _unique_instance_ids(nodes))


def _unique_instance_ids(nodes: Sequence[ClusterNode]) -> list[str]:
    return list(dict.fromkeys(node.instance_id for node in nodes))


def _describe_node_or_empty_if_gone(sagemaker: SageMaker, cluster: str, summary: dict[str, Any]) -> dict[str, Any]:
    try:
        return sagemaker.describe_node(cluster, summary["InstanceId"])
    except AwsError as err:
        if err.code in NOT_FOUND:
            return {}  # replaced since it was listed
        raise


def _to_cluster_node(summary: dict[str, Any], detail: dict[str, Any]) -> ClusterNode:
    status = summary.get("InstanceStatus", {})
    address = detail.get("PrivatePrimaryIp") or _address_from_host_name(summary)
    return ClusterNode(
        summary["InstanceGroupName"],
        summary["InstanceId"],
        summary.get("InstanceType", ""),
        status.get("Status", "unknown"),
        status.get("Message", ""),
        address,
        format_utc(summary.get("LaunchTime")),
        detail.get("CapacityType", ""),
    )


def _address_from_host_name(summary: dict[str, Any]) -> str:
    """The address in the host name that AWS tells of a node, "" where it has none."""
    return _parse_host_address(summary.get("PrivateDnsHostname", ""))


def _parse_host_address(host: str) -> str:
    """Return `10.1.41.18` for ip-10-1-41-18 and ip-10-1-41-18.ec2.internal; "" for another name."""
    match = _HOST.match(host)
    if match:
        return ".".join(match.groups()[:4])
    return ""


def _resolve_node(nodes: Sequence[ClusterNode], name: str) -> ClusterNode:
    candidates = _matching_nodes(nodes, name)
    if not candidates:
        raise Absent(f"no such node: `{name}`", hint="hyperpod-kit list-cluster-nodes")
    if len(candidates) > 1:
        listed = ", ".join(f"{node.instance_id} ({node.group}, {node.status})" for node in candidates)
        raise UsageError(f"`{name}` matches {len(candidates)} nodes: {listed}", hint="use its instance id")
    return candidates[0]


def _matching_nodes(nodes: Sequence[ClusterNode], name: str) -> list[ClusterNode]:
    """The nodes that a name can mean. The address of a node that AWS is shutting down may already be another's, which
    is then the one that is meant."""
    group, _, index = name.partition("/")
    if index.isdigit():
        members = [node for node in nodes if node.group == group]
        return members[int(index) : int(index) + 1]
    by_id = [node for node in nodes if node.instance_id == name]
    if by_id:
        return by_id
    address = _parse_host_address(name) or name
    # AWS tells no address of a node that comes: an empty name is none of it.
    at_address = [node for node in nodes if address and node.address == address]
    remaining = [node for node in at_address if not node.is_shutting_down_or_gone]
    return remaining or at_address


def _address_sort_key(address: str) -> tuple[int, ...]:
    return tuple(int(part) for part in address.split(".") if part.isdigit())
