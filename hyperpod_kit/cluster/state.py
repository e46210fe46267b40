"""What one look at a cluster saw."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Mapping


@dataclass(frozen=True)
class GroupState:
    """One instance group: nodes there, nodes asked for, and how many nodes are in which state."""

    name: str
    current: int
    target: int
    nodes: Mapping[str, int]


@dataclass(frozen=True)
class ClusterState:
    """Status of cluster, groups and nodes.

    `failure`: AWS's FailureMessage; `messages`: (node id, message) of single nodes.
    """

    name: str
    status: str
    failure: str
    groups: tuple[GroupState, ...]
    messages: tuple[tuple[str, str], ...] = ()

    @property
    def ready(self) -> bool:
        """Whether jobs can be submitted: InService, complete, and every node Running."""
        return self.status == "InService" and all(
            group.current == group.target == group.nodes.get("Running", 0) for group in self.groups
        )

    def line(self) -> str:
        """One line for a person: `Creating · controller-machine 1/1 · worker-group 2/3 (2 Pending, 1 Running)`."""
        parts = [self.status]
        for group in self.groups:
            states = ", ".join(f"{count} {status}" for status, count in sorted(group.nodes.items()))
            calm = group.current == group.target == group.nodes.get("Running", 0)
            parts.append(
                f"{group.name} {group.current}/{group.target}" + (f" ({states})" if states and not calm else "")
            )
        return " · ".join(
            [
                *parts,
                *([f"failure: {self.failure}"] if self.failure else []),
                *(f"{node}: {message}" for node, message in self.messages),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**asdict(self), "ready": self.ready}
