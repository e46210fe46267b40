"""From a cluster as it is to the configuration: what changes in place, what only on new nodes, what the API cannot.

| field                                   | how it takes effect                                              |
| count of a group, a new group           | in place: nodes come, or go with what is on their own disks      |
| a group that is gone                    | in place, `InstanceGroupsToDelete`: all its nodes go             |
| NodeRecovery, partitions, Slurm strategy| in place                                                         |
| bundle, storage, role of a group        | for nodes that come from now on; those that are there stay as they are |
| instance type, node type of a group     | never: a group of another name is needed                         |
| VPC                                     | never: not in UpdateCluster                                      |
Source: the service model, and "Updating a cluster with new or updated lifecycle scripts".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Iterator, Mapping

IN_PLACE, NEW_NODES, IMPOSSIBLE = "in place", "new nodes only", "not possible"

_NEW_NODES_FIELDS = ("LifeCycleConfig", "InstanceStorageConfigs", "ExecutionRole", "ThreadsPerCore")


@dataclass(frozen=True)
class Change:
    """One difference. `where`: a group's name, or "cluster"; `how`: IN_PLACE, NEW_NODES or IMPOSSIBLE.

    destroys: nodes that go, with everything on their own disks.
    """

    where: str
    field: str
    before: Any
    after: Any
    how: str
    note: str = ""
    destroys: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class Update:
    """`request`: what UpdateCluster gets."""

    changes: tuple[Change, ...]
    request: dict[str, Any]

    @property
    def possible(self) -> bool:
        """Whether the API can do all of it."""
        return all(change.how != IMPOSSIBLE for change in self.changes)

    @property
    def destroys(self) -> int:
        """Nodes that go."""
        return sum(change.destroys for change in self.changes)


def plan(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> Update:
    """`live`: DescribeCluster's answer; `wanted`: the CreateCluster request of the configuration. Pure."""
    there = {group["InstanceGroupName"]: group for group in live["InstanceGroups"]}
    asked = {group["InstanceGroupName"]: group for group in wanted["InstanceGroups"]}
    changes = [*_cluster(live, wanted)]
    for name, group in asked.items():
        if name in there:
            changes += _group(name, there[name], group)
        else:
            changes.append(Change(name, "group", None, group["InstanceCount"], IN_PLACE, "a new group"))
    leaving = [name for name in there if name not in asked]
    for name in leaving:
        count = int(there[name].get("CurrentCount", 0))
        changes.append(Change(name, "group", count, None, IN_PLACE, "the group goes", destroys=count))
    request: dict[str, Any] = {
        "ClusterName": wanted["ClusterName"],
        "InstanceGroups": list(wanted["InstanceGroups"]),
        "NodeRecovery": wanted["NodeRecovery"],
    }
    if leaving:
        request["InstanceGroupsToDelete"] = leaving
    if "Orchestrator" in wanted:
        request["Orchestrator"] = wanted["Orchestrator"]
    return Update(tuple(changes), request)


def _cluster(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Change]:
    before, after = live.get("NodeRecovery", "Automatic"), wanted["NodeRecovery"]
    if before != after:
        yield Change("cluster", "NodeRecovery", before, after, IN_PLACE)
    if live.get("Orchestrator") != wanted.get("Orchestrator"):
        if (live.get("Orchestrator") is None) != (wanted.get("Orchestrator") is None):
            yield Change("cluster", "Orchestrator", live.get("Orchestrator"), wanted.get("Orchestrator"), IMPOSSIBLE,
                         "another lifecycle mode needs another cluster")
        else:
            yield Change("cluster", "Orchestrator", live["Orchestrator"], wanted["Orchestrator"], IN_PLACE)
    if _vpc(live) != _vpc(wanted):
        yield Change("cluster", "VpcConfig", live.get("VpcConfig"), wanted.get("VpcConfig"), IMPOSSIBLE,
                     "UpdateCluster has no VpcConfig: create another cluster")


def _group(name: str, live: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Change]:
    if live.get("InstanceType") != wanted["InstanceType"]:
        yield Change(name, "InstanceType", live.get("InstanceType"), wanted["InstanceType"], IMPOSSIBLE,
                     "add a group of another name, then take this one out")
    before, after = int(live.get("TargetCount", 0)), int(wanted["InstanceCount"])
    if before != after:
        yield Change(name, "InstanceCount", before, after, IN_PLACE, destroys=max(0, before - after))
    slurm, asked = live.get("SlurmConfig") or {}, wanted.get("SlurmConfig") or {}
    if slurm.get("NodeType") != asked.get("NodeType"):
        yield Change(name, "NodeType", slurm.get("NodeType"), asked.get("NodeType"), IMPOSSIBLE,
                     "a node type cannot be changed: add a group of another name")
    elif slurm.get("PartitionNames") != asked.get("PartitionNames"):
        yield Change(name, "PartitionNames", slurm.get("PartitionNames"), asked.get("PartitionNames"), IN_PLACE)
    for field in _NEW_NODES_FIELDS:
        if field in wanted and live.get(field) != wanted[field]:
            yield Change(name, field, live.get(field), wanted[field], NEW_NODES,
                         "nodes that are there keep what they have until they are replaced")


def _vpc(value: Mapping[str, Any]) -> Any:
    vpc = value.get("VpcConfig")
    return {key: sorted(items) for key, items in vpc.items()} if vpc else None
