"""Why a cluster is not what it should be: AWS's messages and events about it and its nodes, and what each node says."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from threading import Lock
from typing import Any, Callable, Collection, Mapping, Optional, Sequence

from hyperpod_kit.aws.logs import Logs, creation_stream, log_group
from hyperpod_kit.cluster.events import CONTINUOUS, WARN, Event, list_events
from hyperpod_kit.cluster.nodes import ClusterNode, resolve
from hyperpod_kit.errors import AwsError, HyperpodKitError
from hyperpod_kit.remote.causes import recognise
from hyperpod_kit.remote.cloudwatch_transport import CloudWatchTransport
from hyperpod_kit.remote.diagnose import TAIL, AwsWords, Diagnosis, Shipped, as_sent, diagnose
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.validate_mounts import validate_mounts
from hyperpod_kit.remote.way_in import Connect

RECENT = timedelta(hours=1)
"""How old an event may be to count as the present trouble of a cluster."""

GONE = 3
"""Failed nodes of a group that are gone by now and are told of: the newest, of each reason."""

Say = Callable[[str], None]
"""Takes a sentence about what cannot be asked; the diagnosis goes on without it."""


@dataclass(frozen=True)
class FewNodes:
    """An instance group of which AWS lists fewer nodes than it is to have."""

    group: str
    wanted: int
    listed: int


@dataclass(frozen=True)
class ClusterCase:
    """What AWS says of a cluster, and the nodes to ask, with its words on each. `failure`: "" without one; `few`: where
    nodes are missing, when all were asked for."""

    cluster: LiveCluster
    status: str
    failure: str
    arn: str
    targets: Sequence[tuple[NodeTarget, AwsWords]]
    few: tuple[FewNodes, ...] = ()

    def diagnose(self, connect: Connect, timeout: float, progress: Callable[[Diagnosis], None]) -> ClusterDiagnosis:
        """Ask the nodes. Where no way leads to any of them, what they have sent by themselves counts."""
        shipped = _shipped(self.cluster.region, self.cluster.name, self.arn)
        nodes = diagnose(self.targets, connect, shipped=shipped, timeout=timeout, progress=progress)
        if nodes and all(one.unreachable for one in nodes):
            nodes = _as_sent(nodes, self.cluster, self.arn)
        return ClusterDiagnosis(self.cluster.name, self.status, self.failure, tuple(nodes), self.few)


@dataclass(frozen=True)
class ClusterDiagnosis:
    """`failure`: AWS's message about the cluster, "" without one; `few`: where nodes are missing."""

    name: str
    status: str
    failure: str
    nodes: tuple[Diagnosis, ...]
    few: tuple[FewNodes, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing speaks against the cluster or a node, and all that it is to have are there."""
        return not self.failure and not self.few and all(one.healthy for one in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        known = [{"code": one.cause.code, "remedy": one.cause.remedy} for one in recognise(self.failure)]
        return {
            "cluster": self.name,
            "status": self.status,
            "failure": self.failure,
            "known": known,
            "few": [asdict(one) for one in self.few],
            "nodes": [one.to_dict() for one in self.nodes],
        }


def wanted_nodes(cluster: LiveCluster, names: Sequence[str]) -> list[NodeTarget]:
    """The nodes that `names` are, all without one. Raises UsageError, AwsError, Unreachable."""
    return [NodeTarget.of(node) for node in _wanted(cluster.nodes(), names)]


def open_case(cluster: LiveCluster, names: Sequence[str], say: Say) -> ClusterCase:
    """Ask AWS about the cluster and the nodes that `names` are; without one about all, failed ones that are gone too.

    Raises UsageError, AwsError, Unreachable.
    """
    answer = cluster.sagemaker.describe_cluster(cluster.name)
    listed = cluster.nodes()
    wanted = _wanted(listed, names)
    events = _troubles(cluster, answer.get("NodeProvisioningMode"), say)
    said = {event.instance_id: event for event in events if event.instance_id}
    targets = [(NodeTarget.of(node), _told(node, said.get(node.instance_id))) for node in wanted]
    if not names:
        targets += _gone(events, {node.instance_id for node in listed})
    return ClusterCase(
        cluster,
        answer["ClusterStatus"],
        answer.get("FailureMessage", ""),
        answer["ClusterArn"],
        targets,
        () if names else _few(answer["InstanceGroups"], listed),
    )


def _few(groups: Sequence[Mapping[str, Any]], listed: Sequence[ClusterNode]) -> tuple[FewNodes, ...]:
    there = Counter(node.group for node in listed)
    aims = ((group["InstanceGroupName"], group.get("TargetCount", 0)) for group in groups)
    return tuple(FewNodes(name, aim, there[name]) for name, aim in aims if there[name] < aim)


def _wanted(listed: list[ClusterNode], names: Sequence[str]) -> list[ClusterNode]:
    return resolve(listed, names) if names else listed


def _troubles(cluster: LiveCluster, provisioning: object, say: Say) -> list[Event]:
    """What failed lately, oldest first; only clusters whose nodes are provisioned continuously have it noted."""
    if provisioning != CONTINUOUS:
        return []
    try:
        found = list_events(cluster.sagemaker, cluster.name, after=datetime.now(timezone.utc) - RECENT, level=WARN)
    except AwsError as err:
        say(f"without AWS's events: {err.message}")
        return []
    return [event for event in found if not event.passing]


def _told(node: ClusterNode, event: Optional[Event]) -> AwsWords:
    """AWS's words about a node that is there. What an event says of one that runs by now is over."""
    if event is None or node.status == "Running":
        return AwsWords(node.message)
    return AwsWords(node.message or event.failure or event.description, event.lifecycle)


def _gone(events: Sequence[Event], there: Collection[str]) -> list[tuple[NodeTarget, AwsWords]]:
    """Nodes that failed and were taken away: AWS tries again with another one, for ever. Newest first."""
    found: dict[tuple[str, str], tuple[NodeTarget, AwsWords]] = {}
    counts: Counter[str] = Counter()
    for event in reversed(events):
        key = (event.group, event.failure)
        if event.instance_id and event.failure and event.instance_id not in there and key not in found:
            counts[event.group] += 1
            if counts[event.group] <= GONE:
                target = NodeTarget(event.instance_id, event.group, "", "", "gone")
                found[key] = (target, AwsWords(event.failure, event.lifecycle))
    return list(found.values())


def _as_sent(nodes: Sequence[Diagnosis], cluster: LiveCluster, arn: str) -> list[Diagnosis]:
    """With the mounts of each as its newest report has them, where that is young enough to count."""
    max_age = cluster.max_age()
    transport = CloudWatchTransport(Logs(cluster.region), cluster.name, arn, max_age)
    try:
        reports = validate_mounts(
            [one.target for one in nodes], transport, expected=cluster.expected(), max_age=max_age
        )
    except HyperpodKitError as err:
        return [replace(one, unreachable=f"{one.unreachable}; nor what it has sent: {err.message}") for one in nodes]
    return [one if report.error else as_sent(one, report) for one, report in zip(nodes, reports)]


def _shipped(region: Optional[str], name: str, arn: str) -> Shipped:
    """Reads logs from CloudWatch; the client is made when the first is needed."""
    opened = lru_cache(maxsize=1)(lambda: Logs(region))
    lock = Lock()

    def tail(target: NodeTarget) -> list[str]:
        with lock:
            logs = opened()
        # Twice as many: lines about mounts among them are left out.
        return logs.tail(log_group(name, arn), creation_stream(target.group, target.instance_id), 2 * TAIL)

    return tail
