"""Why a cluster is not what it should be: AWS's messages and events about it and its nodes, and what each node says."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from threading import Lock
from typing import Any, Callable, Collection, Mapping, Optional, Sequence

from hyperpod_kit.aws.logs import Logs, creation_log_stream, log_group
from hyperpod_kit.cluster.events import CONTINUOUS, WARN, Event, list_events
from hyperpod_kit.cluster.group_activity import GroupActivity, read_group_activity
from hyperpod_kit.cluster.nodes import ClusterNode, resolve_nodes
from hyperpod_kit.errors import AwsError, HyperpodKitError
from hyperpod_kit.remote.diagnosis.diagnose import TAIL, AwsNodeStatus, Diagnosis, Shipped, apply_sent_report, diagnose
from hyperpod_kit.remote.diagnosis.known_issues import recognise
from hyperpod_kit.remote.live_cluster import LiveCluster
from hyperpod_kit.remote.reports.validate_mounts import validate_mounts
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.cloudwatch_transport import CloudWatchTransport
from hyperpod_kit.remote.transports.transport_choice import Connect

RECENT = timedelta(hours=1)
"""How old an event may be to count as the present trouble of a cluster."""

MOST_REMOVED = 3
"""Failed nodes of a group that are gone by now and are told of: the newest, of each reason."""

Say = Callable[[str], None]
"""Takes a sentence about what cannot be asked; the diagnosis goes on without it."""


@dataclass(frozen=True)
class GroupShortOfNodes:
    """An instance group of which AWS lists fewer nodes than it is to have."""

    group: str
    desired: int
    listed: int

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"group": self.group, "wanted": self.desired, "listed": self.listed}


@dataclass(frozen=True)
class ClusterCase:
    """What AWS says of a cluster, and the nodes to ask, with its words on each. `failure`: "" without one; `few`: where
    nodes are missing, when all were asked for."""

    cluster: LiveCluster
    status: str
    failure: str
    arn: str
    targets: Sequence[tuple[NodeTarget, AwsNodeStatus]]
    few: tuple[GroupShortOfNodes, ...] = ()
    activities: Mapping[str, GroupActivity] = field(default_factory=dict)

    def diagnose(self, connect: Connect, timeout: float, progress: Callable[[Diagnosis], None]) -> ClusterDiagnosis:
        """Diagnose the nodes. Where no way leads to any of them, the reports that they have sent count."""
        shipped = _shipped_log_reader(self.cluster.region, self.cluster.name, self.arn)
        nodes = diagnose(self.targets, connect, shipped=shipped, timeout=timeout, progress=progress)
        if nodes and all(diagnosis.unreachable for diagnosis in nodes):
            nodes = _use_sent_reports(nodes, self.cluster, self.arn)
        return ClusterDiagnosis(
            self.cluster.name, self.status, self.failure, tuple(nodes), self.few, dict(self.activities)
        )


@dataclass(frozen=True)
class ClusterDiagnosis:
    """`failure`: AWS's message about the cluster, "" without one; `few`: where nodes are missing; `activities`: group
    -> what AWS does to it, and what is wrong with it."""

    name: str
    status: str
    failure: str
    nodes: tuple[Diagnosis, ...]
    few: tuple[GroupShortOfNodes, ...] = ()
    activities: Mapping[str, GroupActivity] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether nothing speaks against the cluster or a node, and all that it is to have are there."""
        if self.failure or self.few or any(activity.troubles for activity in self.activities.values()):
            return False
        return all(diagnosis.healthy for diagnosis in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        causes = [
            {"code": recognised.cause.code, "remedy": recognised.cause.remedy} for recognised in recognise(self.failure)
        ]
        return {
            "cluster": self.name,
            "status": self.status,
            "failure": self.failure,
            "known": causes,
            "few": [shortage.to_dict() for shortage in self.few],
            "groups": {name: asdict(activity) for name, activity in self.activities.items()},
            "nodes": [node.to_dict() for node in self.nodes],
        }


def select_targets(cluster: LiveCluster, names: Sequence[str]) -> list[NodeTarget]:
    """Return the nodes that `names` select, all without one. Raises UsageError, AwsError, Unreachable."""
    return [NodeTarget.from_cluster_node(node) for node in _select_nodes(cluster.list_nodes_not_being_removed(), names)]


def fetch_failures_and_nodes_to_diagnose(cluster: LiveCluster, names: Sequence[str], say: Say) -> ClusterCase:
    """Query AWS about the cluster and the nodes that `names` are; without one about all, failed ones that are
    gone too.

    Raises UsageError, AwsError, Unreachable.
    """
    response = cluster.sagemaker.describe_cluster(cluster.name)
    listed = cluster.list_nodes_not_being_removed()
    selected = _select_nodes(listed, names)
    events = _fetch_recent_failures(cluster, response.get("NodeProvisioningMode"), say)
    events_by_node = {event.instance_id: event for event in events if event.instance_id}
    targets = [
        (NodeTarget.from_cluster_node(node), _status_of_node(node, events_by_node.get(node.instance_id)))
        for node in selected
    ]
    if not names:
        targets += _failed_nodes_removed_since(events, {node.instance_id for node in listed})
    few: tuple[GroupShortOfNodes, ...]
    if names:
        few = ()
    else:
        few = _groups_with_missing_nodes(response["InstanceGroups"], listed)
    return ClusterCase(
        cluster,
        response["ClusterStatus"],
        response.get("FailureMessage", ""),
        response["ClusterArn"],
        targets,
        few,
        {str(group["InstanceGroupName"]): read_group_activity(group) for group in response["InstanceGroups"]},
    )


def _groups_with_missing_nodes(
    groups: Sequence[Mapping[str, Any]], listed: Sequence[ClusterNode]
) -> tuple[GroupShortOfNodes, ...]:
    counts = Counter(node.group for node in listed)
    aims = ((group["InstanceGroupName"], group.get("TargetCount", 0)) for group in groups)
    return tuple(GroupShortOfNodes(name, aim, counts[name]) for name, aim in aims if counts[name] < aim)


def _select_nodes(listed: list[ClusterNode], names: Sequence[str]) -> list[ClusterNode]:
    if names:
        return resolve_nodes(listed, names)
    return listed


def _fetch_recent_failures(cluster: LiveCluster, provisioning: object, say: Say) -> list[Event]:
    """Return recent failures, oldest first; only clusters with continuous provisioning have events."""
    if provisioning != CONTINUOUS:
        return []
    try:
        events = list_events(cluster.sagemaker, cluster.name, after=datetime.now(timezone.utc) - RECENT, level=WARN)
    except AwsError as err:
        say(f"without AWS's events: {err.message}")
        return []
    return [event for event in events if not event.is_startup_warning]


def _status_of_node(node: ClusterNode, event: Optional[Event]) -> AwsNodeStatus:
    """Return AWS's messages about a node that is there. An event is ignored once the node runs."""
    if event is None or node.status == "Running":
        return AwsNodeStatus(node.message)
    return AwsNodeStatus(node.message or event.failure or event.description, event.lifecycle)


def _failed_nodes_removed_since(
    events: Sequence[Event], present: Collection[str]
) -> list[tuple[NodeTarget, AwsNodeStatus]]:
    """Return nodes that failed and were removed, newest first: AWS tries again with another one, for ever."""
    removed: dict[tuple[str, str], tuple[NodeTarget, AwsNodeStatus]] = {}
    counts: Counter[str] = Counter()
    for event in reversed(events):
        key = (event.group, event.failure)
        if event.instance_id and event.failure and event.instance_id not in present and key not in removed:
            counts[event.group] += 1
            if counts[event.group] <= MOST_REMOVED:
                target = NodeTarget(event.instance_id, event.group, "", "", "gone")
                removed[key] = (target, AwsNodeStatus(event.failure, event.lifecycle))
    return list(removed.values())


def _use_sent_reports(nodes: Sequence[Diagnosis], cluster: LiveCluster, arn: str) -> list[Diagnosis]:
    """Add the mounts of each node from the newest report that it has sent, where that is young enough to count."""
    max_age = cluster.max_report_age_seconds()
    transport = CloudWatchTransport(Logs(cluster.region), cluster.name, arn, max_age)
    try:
        reports = validate_mounts(
            [diagnosis.target for diagnosis in nodes],
            transport,
            expected=cluster.expected_mounts_by_group(),
            max_age=max_age,
        )
    except HyperpodKitError as err:
        return [
            replace(
                diagnosis,
                unreachable=f"{diagnosis.unreachable}; its sent reports are not available either: {err.message}",
            )
            for diagnosis in nodes
        ]
    return [
        diagnosis if report.error else apply_sent_report(diagnosis, report) for diagnosis, report in zip(nodes, reports)
    ]


def _shipped_log_reader(region: Optional[str], name: str, arn: str) -> Shipped:
    """Return a function that reads a node's log from CloudWatch; the client is made when the first is needed."""
    opened = lru_cache(maxsize=1)(lambda: Logs(region))
    lock = Lock()

    def tail(target: NodeTarget) -> list[str]:
        with lock:
            logs = opened()
        # Twice as many: lines about mounts among them are left out.
        return logs.tail(log_group(name, arn), creation_log_stream(target.group, target.instance_id), 2 * TAIL)

    return tail
