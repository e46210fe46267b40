"""A node to be asked something, and how ssh reaches it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

from hyperpod_kit.cluster.nodes import ClusterNode


@dataclass(frozen=True)
class NodeTarget:
    """One node of a cluster. `status`: what AWS says of it; `address`: empty when AWS tells none."""

    instance_id: str
    group: str
    role: str
    address: str
    status: str = "Running"

    @classmethod
    def from_cluster_node(cls, node: ClusterNode, node_role: str = "") -> NodeTarget:
        """Make a target of a node that AWS lists."""
        return cls(node.instance_id, node.group, node_role, node.address, node.status)


@dataclass(frozen=True)
class SshSettings:
    """How to log in. `key`: private key file, None for the agent and ~/.ssh; times in seconds.

    `proxy`: a command whose input and output are the connection, with %h and %p, "" for none. `named`: whether
    somebody has said how to log in: then what is wrong with that is an error of theirs.
    """

    user: str
    known_hosts: Path
    key: Optional[Path] = None
    port: int = 22
    connect_timeout: float = 10.0
    command_timeout: float = 60.0
    proxy: str = ""
    named: bool = True


def sample_per_group(targets: Sequence[NodeTarget], most: int) -> list[NodeTarget]:
    """Return the first `most` nodes of each instance group, in the order of the targets."""
    taken: Counter[str] = Counter()
    sample = []
    for target in targets:
        if taken[target.group] < most:
            taken[target.group] += 1
            sample.append(target)
    return sample
