"""From a cluster as it is to the configuration: what changes in place, what only on new nodes, what the API cannot.

| field                                   | how it takes effect                                              |
| count of a group, a new group           | in place: nodes come, or go with what is on their own disks      |
| a group that is gone                    | in place, `InstanceGroupsToDelete`: all its nodes go             |
| NodeRecovery, partitions, Slurm strategy| in place                                                         |
| bundle, storage of a group              | for nodes that come from now on; those that are there stay as they are |
| type, node type, role, threads per core, network of a group | never: a group of another name is needed     |
| the controller's group                  | never taken out, and it keeps its number of nodes                |
| VPC; from SlurmConfig or Continuous back| never: another cluster is needed                                 |
Sources: the service model; "Update cluster configuration" (an existing group keeps its instance type, its role and its
ThreadsPerCore; a Slurm controller cannot be removed); "Updating a cluster with new or updated lifecycle scripts";
"Migrating to API-driven Slurm configuration" (UpdateCluster does that, and the way to Continuous).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Iterator, Mapping, Optional, Sequence

from hyperpod_kit.aws import request_shape
from hyperpod_kit.cluster.command_arguments import live_cluster_arguments
from hyperpod_kit.errors import ClusterError, ConfigError

IN_PLACE, NEW_NODES, IMPOSSIBLE = "in place", "new nodes only", "not possible"

_STAY = "existing nodes keep their settings until they are replaced"
_FIXED = "a group keeps its original value: add a group with another name, then remove this one"
_FIELDS: Mapping[str, tuple[str, str]] = {
    "InstanceType": (IMPOSSIBLE, _FIXED),
    "InstanceRequirements": (IN_PLACE, "types can be added; a type that nodes run on cannot be removed"),
    "ExecutionRole": (IMPOSSIBLE, _FIXED),
    "ThreadsPerCore": (IMPOSSIBLE, _FIXED),
    "OverrideVpcConfig": (IMPOSSIBLE, _FIXED),
    "CapacityRequirements": (IMPOSSIBLE, _FIXED),
    "TrainingPlanArn": (NEW_NODES, _STAY),
    "LifeCycleConfig": (NEW_NODES, _STAY),
    "InstanceStorageConfigs": (NEW_NODES, _STAY),
    "OnStartDeepHealthChecks": (NEW_NODES, "checked on new nodes only"),
    "MinInstanceCount": (IN_PLACE, ""),
    "AutoPatchConfig": (IN_PLACE, "nodes that wait for a patch accept no new jobs"),
    "ScheduledUpdateConfig": (IN_PLACE, "a scheduled update ignores jobs"),
    "NetworkInterface": (NEW_NODES, _STAY),
}
"""Field of an instance group -> how it takes effect, and what to say of it. Counts and SlurmConfig have their own."""

_CLUSTER_FIELDS: Mapping[str, tuple[str, str]] = {
    "NodeRecovery": (IN_PLACE, ""),
    "ClusterRole": (IN_PLACE, ""),
    "AutoScaling": (IN_PLACE, ""),
    "TieredStorageConfig": (IN_PLACE, ""),
    "NodeProvisioningMode": (
        IN_PLACE,
        "AWS's documentation is contradictory on whether it can change; a change cannot be undone",
    ),
    "VpcConfig": (IMPOSSIBLE, "UpdateCluster has no VpcConfig: create another cluster"),
}
_DEFAULTS = {"NodeRecovery": "Automatic"}
"""What DescribeCluster means where it says nothing."""

_REMOVABLE_FIELDS = ("LifeCycleConfig", "InstanceStorageConfigs", "OnStartDeepHealthChecks")
"""Fields that DescribeCluster tells only where they were asked for: one that is told and not wanted is a change.

Others (ThreadsPerCore, …) it fills in by itself.
"""
_SCHEDULES_OF_PATCH = ("CurrentPatchSchedule", "DesiredPatchSchedule")
_SEPARATE_FIELDS = ("ClusterName", "InstanceGroups", "Orchestrator", *_CLUSTER_FIELDS)
_AMI = "needs an AMI of January 2026 or later"


def format_value(value: Any) -> str:
    """A value of a request as people know it: JSON, a text without quotes, - for none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True)


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


@dataclass(frozen=True)
class Update:
    """`request`: what UpdateCluster gets; `desired`: group -> nodes when it is done."""

    changes: tuple[Change, ...]
    request: dict[str, Any]
    desired: Mapping[str, int]

    @property
    def can_api_do_all(self) -> bool:
        """Whether the API can do all of it."""
        return all(change.how != IMPOSSIBLE for change in self.changes)

    @property
    def destroyed_node_count(self) -> int:
        """Count the nodes that go."""
        return sum(change.destroys for change in self.changes)

    @property
    def leaving_node_counts_by_group(self) -> Mapping[str, int]:
        """Group -> how many of its nodes go; of a group that is taken out, all."""
        return {change.where: change.destroys for change in self.changes if change.destroys}

    @property
    def only_shrinks_remaining_groups(self) -> bool:
        """Whether deleting nodes of groups that stay is all of it."""
        return bool(self.changes) and all(
            change.field == "InstanceCount" and change.destroys for change in self.changes
        )

    @property
    def groups_needing_replacement(self) -> tuple[str, ...]:
        """Return the groups whose nodes get the change only when they are replaced."""
        return tuple(dict.fromkeys(change.where for change in self.changes if change.how == NEW_NODES))


def plan_update(live: Mapping[str, Any], desired: Mapping[str, Any], controller: str = "") -> Update:
    """Return the changes and the UpdateCluster request that bring a cluster to the configuration. Pure.

    `live`: DescribeCluster's answer; `desired`: the CreateCluster request of the configuration;
    controller: the Slurm controller's group, which SlurmConfig does not tell in on_create mode.
    """
    live_groups = {group["InstanceGroupName"]: group for group in live["InstanceGroups"]}
    desired_groups = {group["InstanceGroupName"]: group for group in desired["InstanceGroups"]}
    changes = [*_cluster_changes(live, desired)]
    for name, group in desired_groups.items():
        head = _is_controller_group(live_groups.get(name, group)) or name == controller
        if name in live_groups:
            changes += _group_changes(name, live_groups[name], group, head)
        else:
            changes += [_new_group_change(name, group, head)]
    leaving = [name for name in live_groups if name not in desired_groups]
    changes += [_removed_group_change(name, live_groups[name]) for name in leaving]
    request = {key: value for key, value in desired.items() if _is_update_cluster_field(key)}
    if leaving:
        request["InstanceGroupsToDelete"] = leaving
    return Update(
        tuple(changes), request, {name: int(group["InstanceCount"]) for name, group in desired_groups.items()}
    )


def target_counts_after_leaving(live: Mapping[str, Any], groups_of_leaving_nodes: Sequence[str]) -> dict[str, int]:
    """Return group -> nodes that AWS aims at once the nodes in `leaving` (a group for each) have gone."""
    counts = {str(group["InstanceGroupName"]): int(group.get("TargetCount", 0)) for group in live["InstanceGroups"]}
    for group in groups_of_leaving_nodes:
        counts[group] -= 1
    return counts


def require_aws_would_accept_update(live: Mapping[str, Any], update: Update) -> None:
    """Raise ClusterError when the cluster's status, ConfigError when the request's shape would make AWS
    refuse it."""
    name, status = update.request["ClusterName"], live["ClusterStatus"]
    if status != "InService" and live.get("NodeProvisioningMode") != "Continuous":
        failure = ""
        if live.get("FailureMessage"):
            failure = f": {live['FailureMessage']}"
        command = "wait"
        if status == "Failed":
            command = "diagnose"
        raise ClusterError(
            f"cluster {name} is {status}{failure}; AWS accepts changes only when it is InService",
            hint=f"hyperpod-kit {command} {live_cluster_arguments(live)}, then repeat the command",
        )
    refused = request_shape.find_request_problems("sagemaker", "UpdateCluster", update.request)
    if refused:
        hint = "correct the configuration"
        if any(problem.newer for problem in refused):
            hint = "pip install -U boto3"
        raise ConfigError(
            f"UpdateCluster of {request_shape.botocore_version()} would refuse the request",
            findings=[str(problem) for problem in refused],
            hint=hint,
        )


def _is_update_cluster_field(field: str) -> bool:
    """Whether UpdateCluster has this member of CreateCluster."""
    return bool(request_shape.field_constraints("sagemaker", "UpdateCluster", field))


def _cluster_changes(live: Mapping[str, Any], desired: Mapping[str, Any]) -> Iterator[Change]:
    other_fields = {
        field: (IN_PLACE if _is_update_cluster_field(field) else IMPOSSIBLE, "")
        for field in desired
        if field in live and field not in _SEPARATE_FIELDS
    }
    for field, (how, note) in {**_CLUSTER_FIELDS, **other_fields}.items():
        before, after = (
            _drop_empty_and_sort_name_lists(side.get(field, _DEFAULTS.get(field))) for side in (live, desired)
        )
        if before == after:
            continue
        if field == "NodeProvisioningMode" and after is None:
            how, note = IMPOSSIBLE, "UpdateCluster cannot undo this: create another cluster"
        yield Change("cluster", field, before, after, how, note)
    before, after = _comparable_orchestrators(live, desired)
    if before is not None and after is None:
        yield Change(
            "cluster",
            "Orchestrator",
            before,
            after,
            IMPOSSIBLE,
            "a return to provisioning_parameters.json is not possible: create another cluster",
        )
    elif before != after:
        note = ""
        if before is None:
            note = _AMI
        yield Change("cluster", "Orchestrator", before, after, IN_PLACE, note)


def _comparable_orchestrators(live: Mapping[str, Any], desired: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return both, without the strategy where none is desired.

    Continuous clusters take none, and are described with one.
    """
    before, after = live.get("Orchestrator"), desired.get("Orchestrator")
    if before is None or after is None or "SlurmConfigStrategy" in after.get("Slurm", {}):
        return before, after
    slurm = {key: value for key, value in before.get("Slurm", {}).items() if key != "SlurmConfigStrategy"}
    return {**before, "Slurm": slurm}, after


def _group_changes(
    name: str, live: Mapping[str, Any], desired: Mapping[str, Any], is_controller: bool
) -> Iterator[Change]:
    before, after = int(live.get("TargetCount", 0)), int(desired["InstanceCount"])
    if is_controller and after < before:
        yield Change(name, "InstanceCount", before, after, IMPOSSIBLE, "the Slurm controller cannot be removed")
    elif is_controller and 0 < before < after:
        note = "a cluster keeps its number of Slurm controllers: create another cluster"
        yield Change(name, "InstanceCount", before, after, IMPOSSIBLE, note)
    elif before != after:
        yield Change(name, "InstanceCount", before, after, IN_PLACE, destroys=max(0, before - after))
    slurm, desired_slurm = live.get("SlurmConfig") or {}, desired.get("SlurmConfig") or {}
    if slurm.get("NodeType") != desired_slurm.get("NodeType"):
        if slurm:
            how, note = (IMPOSSIBLE, "a node type cannot be changed: add a group with another name")
        else:
            how, note = (IN_PLACE, _AMI)
        yield Change(name, "NodeType", slurm.get("NodeType"), desired_slurm.get("NodeType"), how, note)
    elif _drop_empty_and_sort_name_lists(slurm.get("PartitionNames")) != _drop_empty_and_sort_name_lists(
        desired_slurm.get("PartitionNames")
    ):
        yield Change(name, "PartitionNames", slurm.get("PartitionNames"), desired_slurm.get("PartitionNames"), IN_PLACE)
    other_fields = {
        field: (NEW_NODES, "") for field in desired if field in live and field not in (*_FIELDS, "SlurmConfig")
    }
    for field, (how, note) in {**_FIELDS, **other_fields}.items():
        was, will = (
            _drop_empty_and_sort_name_lists(_as_requested(field, live.get(field), desired.get(field))),
            _drop_empty_and_sort_name_lists(_as_requested(field, desired.get(field), desired.get(field))),
        )
        if was != will and (will is not None or field in _REMOVABLE_FIELDS):
            yield Change(name, field, was, will, how, note)


def _as_requested(field: str, described: Any, requested: Any) -> Any:
    """A field as CreateCluster has it, where DescribeCluster has another form of it, or leaves the usual out."""
    if field == "CapacityRequirements":
        if "Spot" in (described or {}):
            return "Spot"
        return "OnDemand"
    if field == "InstanceRequirements" and isinstance(described, Mapping) and "InstanceTypes" not in described:
        return {"InstanceTypes": described.get("DesiredInstanceTypes") or described.get("CurrentInstanceTypes")}
    if field == "AutoPatchConfig" and isinstance(described, Mapping) and "PatchSchedule" not in described:
        return _patching_as_requested(described, requested or {})
    return described


def _patching_as_requested(described: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
    """The AutoPatchConfig of CreateCluster for one of DescribeCluster."""
    known = {key: value for key, value in described.items() if key not in _SCHEDULES_OF_PATCH}
    date = (requested.get("PatchSchedule") or {}).get("NextPatchDate")
    dates = [(described.get(key) or {}).get("NextPatchDate") for key in _SCHEDULES_OF_PATCH]
    if date is not None and any(_is_same_date(date, other) for other in dates):
        # AWS moves the date on after every patch: only one that is asked for and not known is a change.
        known["PatchSchedule"] = {"NextPatchDate": date}
    return known


def _is_same_date(requested: str, described: Any) -> bool:
    """Whether a date of a request, in ISO's form, is one of an answer, which boto3 gives as a datetime."""
    try:
        date = datetime.fromisoformat(requested.replace("Z", "+00:00"))
    except ValueError:
        return bool(requested == described)
    if date.tzinfo is None:
        date = date.replace(tzinfo=timezone.utc)
    return bool(date == described)


def _new_group_change(name: str, group: Mapping[str, Any], is_controller: bool) -> Change:
    if is_controller:
        return Change(
            name,
            "group",
            None,
            group["InstanceCount"],
            IMPOSSIBLE,
            "a cluster keeps its Slurm controller",
        )
    return Change(name, "group", None, group["InstanceCount"], IN_PLACE, "a new group")


def _removed_group_change(name: str, group: Mapping[str, Any]) -> Change:
    count = int(group.get("CurrentCount", 0))
    if _is_controller_group(group):
        return Change(name, "group", count, None, IMPOSSIBLE, "the Slurm controller cannot be removed")
    return Change(name, "group", count, None, IN_PLACE, "the group is removed", destroys=count)


def _is_controller_group(group: Mapping[str, Any]) -> bool:
    return bool((group.get("SlurmConfig") or {}).get("NodeType") == "Controller")


def _drop_empty_and_sort_name_lists(value: Any) -> Optional[Any]:
    """Normalise a value: drop empty parts, and sort lists of names."""
    if isinstance(value, Mapping):
        return {
            key: _drop_empty_and_sort_name_lists(item)
            for key, item in sorted(value.items())
            if item not in (None, [], {})
        } or None
    if isinstance(value, (list, tuple)):
        items = [_drop_empty_and_sort_name_lists(item) for item in value]
        return (sorted(items) if all(isinstance(item, str) for item in items) else items) or None
    return value
