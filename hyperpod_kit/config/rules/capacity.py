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
            problem = "missing: expected the type of its nodes"
            if group.instance_type:
                problem = "AWS takes either one type or a list of types"
            yield Finding(
                "HPK-G027", f"{at}.instance_type", problem, "Say instance_type or instance_types, one of the two"
            )
        elif len(set(group.instance_types)) != len(group.instance_types):
            yield Finding(
                "HPK-G028",
                f"{at}.instance_types",
                "a type is listed twice",
                "Name each type once, the preferred one first",
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
            f"nodes of `{group.name}` would differ ({'; '.join(differences)}), and Slurm gives a job whichever are "
            "free: after a node was replaced, a job may not start again",
            "Make a group, and a partition, for each kind of node",
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
                "AWS may take the controller away at any time: until there is another one no job starts, ends or comes "
                "back",
                f"Use OnDemand for `{group.name}`",
            )
            continue
        if cluster.node_recovery == "None":
            yield Finding(
                "HPK-G032",
                at,
                "a node that AWS takes away is not replaced while node_recovery is None: jobs that need it wait for "
                "ever",
                "Set node_recovery to Automatic",
            )
        if group.training_plan_arn is not None:
            yield Finding(
                "HPK-G033",
                at,
                "the group has a training plan, which is reserved capacity: Spot is none",
                "Use OnDemand, or a group of its own for Spot",
            )
        if cluster.node_provisioning_mode != CONTINUOUS:
            yield Finding(
                "HPK-G034",
                at,
                "without continuous provisioning nodes come all or none: with too little Spot capacity for one of them "
                "the cluster, or its update, fails and is rolled back",
                'Add "node_provisioning_mode": "Continuous"',
                WARNING,
            )
        if group.role == Role.LOGIN:
            yield Finding(
                "HPK-G035",
                at,
                f"AWS may take the login node away at any time, with the sessions of everybody on `{group.name}`",
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
                "a training plan reserves nodes of one type, and the group may have several",
                "Say instance_type, and the plan's type",
            )
        if group.role == Role.CONTROLLER:
            yield Finding(
                "HPK-G037",
                at,
                "when the plan ends, AWS takes its nodes: the controller would go with all jobs and queues",
                "Use the plan for compute groups only",
            )
