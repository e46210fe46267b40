"""What a group's nodes are made of: instance types, Spot or not, and network cards. Combinations that lose work."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.rules.cluster import AT
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.accelerators import gpu_count
from hyperpod_kit.model.cluster import InstanceGroup
from hyperpod_kit.model.instance_types import architecture
from hyperpod_kit.model.states import Role

SPOT = "Spot"
ON_DEMAND = "OnDemand"
CONTINUOUS = "Continuous"


def check_instance_types(settings: Settings) -> Iterator[Finding]:
    """A group has one type, or a list of types that jobs may have side by side."""
    for index, group in enumerate(settings.cluster.groups):
        at = f"{AT}.instance_groups[{index}]"
        if bool(group.instance_type) == bool(group.instance_types):
            problem = "missing: expected an instance type"
            if group.instance_type:
                problem = "AWS takes either one type or a list of types"
            yield Finding("HPK-G027", f"{at}.instance_type", problem, "Use either instance_type or instance_types")
        elif len(set(group.instance_types)) != len(group.instance_types):
            yield Finding(
                "HPK-G028",
                f"{at}.instance_types",
                "a type is listed twice",
                "List each type once, the preferred type first",
            )
        else:
            yield from _check_types_are_alike(f"{at}.instance_types", group)


def _check_types_are_alike(at: str, group: InstanceGroup) -> Iterator[Finding]:
    architectures = sorted({architecture(name) for name in group.types})
    gpus = sorted({gpu_count(name) or 0 for name in group.types})
    differences = []
    if len(architectures) > 1:
        differences.append(f"architectures: {', '.join(architectures)}")
    if len(gpus) > 1:
        differences.append(f"GPUs: {', '.join(map(str, gpus))}")
    if differences:
        yield Finding(
            "HPK-G029",
            at,
            f"nodes of `{group.name}` would differ ({'; '.join(differences)}), and Slurm gives a job any "
            "free nodes: after a node is replaced, a job may fail to start again",
            "Define a group and a partition for each type of node",
            WARNING,
        )


def check_spot(settings: Settings) -> Iterator[Finding]:
    """Spot takes nodes away: none that the cluster needs, and somebody brings others."""
    cluster = settings.cluster
    for index, group in enumerate(cluster.groups):
        at = f"{AT}.instance_groups[{index}].capacity"
        if group.capacity not in (None, SPOT, ON_DEMAND):
            yield Finding("HPK-G030", at, f"`{group.capacity}` is neither Spot nor OnDemand", "Use OnDemand")
        if group.capacity != SPOT:
            continue
        if group.role == Role.CONTROLLER:
            yield Finding(
                "HPK-G031",
                at,
                "AWS may reclaim the controller at any time: until it is replaced, no job starts, ends or is requeued",
                f"Use OnDemand for `{group.name}`",
            )
            continue
        if cluster.node_recovery == "None":
            yield Finding(
                "HPK-G032",
                at,
                "a node that AWS reclaims is not replaced while node_recovery is None: jobs that need it wait forever",
                "Set node_recovery to Automatic",
            )
        if group.training_plan_arn is not None:
            yield Finding(
                "HPK-G033",
                at,
                "the group has a training plan, which is reserved capacity: it cannot be Spot",
                "Use OnDemand, or a separate group for Spot",
            )
        if cluster.node_provisioning_mode != CONTINUOUS:
            yield Finding(
                "HPK-G034",
                at,
                "without continuous provisioning the cluster gets all nodes or none: if Spot capacity is "
                "missing for one of them, the creation or update fails and is rolled back",
                'Add "node_provisioning_mode": "Continuous"',
                WARNING,
            )
        if group.role == Role.LOGIN:
            yield Finding(
                "HPK-G035",
                at,
                f"AWS may reclaim the login node at any time, with all sessions on `{group.name}`",
                "Use OnDemand",
                WARNING,
            )


def check_training_plans(settings: Settings) -> Iterator[Finding]:
    """A plan reserves nodes of one type, for a time."""
    for index, group in enumerate(settings.cluster.groups):
        if group.training_plan_arn is None:
            continue
        at = f"{AT}.instance_groups[{index}].training_plan_arn"
        if len(group.instance_types) > 1:
            yield Finding(
                "HPK-G036",
                at,
                "a training plan reserves nodes of one type, but the group lists several",
                "Use instance_type with the plan's type",
            )
        if group.role == Role.CONTROLLER:
            yield Finding(
                "HPK-G037",
                at,
                "when the plan ends, AWS removes its nodes: the controller would be lost with all jobs and queues",
                "Use the plan for compute groups only",
            )
