"""What one look at a cluster saw."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Mapping

from hyperpod_kit.cluster.group_activity import GroupActivity
from hyperpod_kit.untrusted.text import clean_one_line

BRIEF = 300
"""Characters of AWS's words in a line: a FailureMessage can hold the end of a log."""


def shorten_aws_text(text: str) -> str:
    """Shorten AWS's text, which may be a node's, to one line."""
    return clean_one_line(text, BRIEF)


@dataclass(frozen=True)
class GroupState:
    """One instance group: nodes there, nodes asked for, and how many nodes are in which state.

    status: AWS's InstanceGroupStatus, "" where it says none; activity: what AWS does to it, and what is wrong with it.
    """

    name: str
    current: int
    target: int
    nodes: Mapping[str, int]
    status: str = ""
    activity: GroupActivity = field(default_factory=GroupActivity)

    @property
    def ready(self) -> bool:
        """Whether every node that was asked for is there and runs."""
        return self.current == self.target == self.nodes.get("Running", 0)

    def line(self) -> str:
        """Describe it for a person: `worker-group 2/3 (2 Pending, 1 Running)`."""
        states = ", ".join(f"{count} {status}" for status, count in sorted(self.nodes.items()))
        details = []
        if self.status in ("Failed", "Degraded"):
            details.append(self.status)
        if self.current and not states:
            details.append("none is listed")
        elif states and not self.ready:
            details.append(states)
        details += [*self.activity.troubles, *self.activity.doing]
        counts = f"{self.name} {self.current}/{self.target}"
        if details:
            return f"{counts} ({'; '.join(details)})"
        return counts


@dataclass(frozen=True)
class ClusterState:
    """Status of cluster, groups and nodes.

    failure: AWS's FailureMessage; messages: (node id, message) of single nodes; continuous: nodes come and are tried
    again while the cluster is InService; failed: ids of nodes that AWS calls failed.
    """

    name: str
    status: str
    failure: str
    groups: tuple[GroupState, ...]
    messages: tuple[tuple[str, str], ...] = ()
    continuous: bool = False
    failed: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether jobs can be submitted: InService, complete, and every node Running."""
        return self.status == "InService" and all(group.ready for group in self.groups)

    @property
    def plan_arns_by_group(self) -> dict[str, str]:
        """Group -> ARN of its training plan, of the groups that have one."""
        return {group.name: group.activity.plan_arn for group in self.groups if group.activity.plan_arn}

    def describe_targets_unlike_desired(self, desired: Mapping[str, int]) -> list[str]:
        """Describe where the counts that AWS aims at are not `desired` (group -> nodes).

        A group that is not desired must go.
        """
        target_counts = {group.name: group.target for group in self.groups}
        return [
            f"{name}: the configuration has {desired.get(name, 0)}, AWS's target is {target_counts.get(name, 0)}"
            for name in dict.fromkeys([*desired, *target_counts])
            if desired.get(name, 0) != target_counts.get(name, 0)
        ]

    def line(self) -> str:
        """Describe it for a person: `Creating · controller-machine 1/1 · worker-group 2/3 (2 Pending, 1 Running)`."""
        parts = [self.status, *(group.line() for group in self.groups)]
        if self.failure:
            parts.append(f"failure: {shorten_aws_text(self.failure)}")
        parts += [
            f"{node}: {shorten_aws_text(message)}" for node, message in self.messages if message not in self.failure
        ]
        return " · ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**asdict(self), "ready": self.ready}
