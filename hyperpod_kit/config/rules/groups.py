"""Instance groups: one controller, at most one login group, everything else compute with a partition."""

from __future__ import annotations

import re
from collections import Counter
from difflib import get_close_matches
from typing import Iterator

from hyperpod_kit.config.fields.fields import fits_field_pattern_if_any
from hyperpod_kit.config.rules.cluster import AT
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.patterns import CLUSTER_NAME
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.states import LifecycleMode, Role
from hyperpod_kit.untrusted.text import counted


def check_controller_group(settings: Settings) -> Iterator[Finding]:
    """Exactly one instance group is the controller's, and it has a node; of several see controllers.py."""
    controller_group = settings.parameters.controller_group
    groups = settings.cluster.groups
    controllers = [index for index, group in enumerate(groups) if group.role == Role.CONTROLLER]
    if not controllers:
        yield Finding(
            "HPK-G001",
            "controller_group",
            f"there is no instance group `{controller_group}`, so the cluster has no controller",
            _group_name_hint(settings, controller_group),
        )
    for index in controllers[1:]:
        yield Finding(
            "HPK-G002",
            f"{AT}.instance_groups[{index}].name",
            f"a second controller group `{controller_group}`",
            "A cluster has exactly one: remove or rename this group",
        )
    for index in controllers[:1]:
        if groups[index].count < 1:
            yield Finding(
                "HPK-G003",
                f"{AT}.instance_groups[{index}].count",
                f"the controller group has {groups[index].count} nodes, so nothing runs Slurm's controller",
                "Use 1, or 2 for a second controller that takes over",
            )


def check_login_group(settings: Settings) -> Iterator[Finding]:
    """The login group, when named, is an instance group and not the controller's."""
    login_group = settings.parameters.login_group
    if login_group is None:
        return
    if login_group == settings.parameters.controller_group:
        yield Finding(
            "HPK-G004",
            "login_group",
            f"`{login_group}` is the controller group already",
            "Name another group, or remove the key",
        )
    elif login_group not in {group.name for group in settings.cluster.groups}:
        yield Finding(
            "HPK-G005",
            "login_group",
            f"there is no instance group `{login_group}`",
            _group_name_hint(settings, login_group),
        )


def check_group_names_and_counts(settings: Settings) -> Iterator[Finding]:
    """Names are unique, counts are possible."""
    groups = settings.cluster.groups
    if not groups:
        yield Finding(
            "HPK-G006", f"{AT}.instance_groups", "the list is empty", "Add a controller group and a worker group"
        )
    name_counts = Counter[str]()
    for index, group in enumerate(groups):
        at = f"{AT}.instance_groups[{index}]"
        name_counts[group.name] += 1
        named = fits_field_pattern_if_any(f"{AT}.instance_groups[].name", group.name)
        if named and name_counts[group.name] == 2 and group.role != Role.CONTROLLER:
            yield Finding("HPK-G008", f"{at}.name", f"`{group.name}` is the name of two groups", "Rename one of them")
        if not 0 <= group.count <= 6758:
            yield Finding("HPK-G010", f"{at}.count", f"{group.count} nodes: expected 0 to 6758", "Correct the number")


def check_compute_groups_have_one_partition(settings: Settings) -> Iterator[Finding]:
    """Every compute group is in worker_groups once, and nothing else is."""
    roles = {group.name: group.role for group in settings.cluster.groups}
    name_counts = Counter[str]()
    for index, worker in enumerate(settings.parameters.worker_groups):
        at = f"worker_groups[{index}]"
        name = worker.instance_group_name
        name_counts[name] += 1
        if name not in roles:
            yield Finding(
                "HPK-G011",
                f"{at}.instance_group_name",
                f"there is no instance group `{name}`",
                _group_name_hint(settings, name),
            )
        elif roles[name] != Role.COMPUTE:
            yield Finding(
                "HPK-G012",
                f"{at}.instance_group_name",
                f"`{name}` is the {roles[name]} group: only compute groups have a partition",
                "Remove this entry",
            )
        elif name_counts[name] == 2:
            yield Finding(
                "HPK-G013", f"{at}.instance_group_name", f"`{name}` is listed twice", "Remove one of the entries"
            )
    without = [
        (index, group)
        for index, group in enumerate(settings.cluster.groups)
        if group.role == Role.COMPUTE and group.name and group.name not in name_counts
    ]
    if len(without) == 1 and all(group.role != Role.CONTROLLER for group in settings.cluster.groups):
        return  # that one is the controller, whose name is misspelled: `check_controller_group` says so
    for index, group in without:
        yield Finding(
            "HPK-G015",
            f"{AT}.instance_groups[{index}].name",
            f"compute group `{group.name}` has no partition",
            f'Add {{"instance_group_name": "{group.name}", "partition_name": "…"}} to worker_groups',
        )


def check_partition_names_fit_api(settings: Settings) -> Iterator[Finding]:
    """Where HyperPod itself makes the partitions, their names are as its API wants them, which is less than Slurm."""
    if settings.cluster.lifecycle_mode == LifecycleMode.ON_CREATE:
        return
    for index, worker in enumerate(settings.parameters.worker_groups):
        name = worker.partition_name
        if fits_field_pattern_if_any("worker_groups[].partition_name", name) and not re.fullmatch(CLUSTER_NAME, name):
            yield Finding(
                "HPK-G019",
                f"worker_groups[{index}].partition_name",
                f"`{name}` is a name that Slurm takes and HyperPod's API does not",
                "Use letters, digits and single hyphens, or lifecycle_mode on_create, where the bundle sets Slurm up",
            )


def check_deep_checks_min_count_ebs_key(settings: Settings) -> Iterator[Finding]:
    """What a group may have besides its nodes."""
    for index, group in enumerate(settings.cluster.groups):
        at = f"{AT}.instance_groups[{index}]"
        if group.deep_health_checks and group.role != Role.COMPUTE:
            yield Finding(
                "HPK-G016",
                f"{at}.deep_health_checks",
                f"`{group.name}` is the {group.role} group: only compute nodes are checked",
                "Remove it here",
            )
        if group.min_count is not None and group.min_count > group.count:
            yield Finding(
                "HPK-G017",
                f"{at}.min_count",
                f"{counted(group.min_count, 'node')}, and the group has {group.count}",
                f"Use {group.count} or less",
            )
        if group.ebs_kms_key is not None and group.ebs_gib is None:
            yield Finding(
                "HPK-G018",
                f"{at}.ebs_kms_key",
                "a key for a volume that the group does not have",
                "Add ebs_gib; for the root volume use root_kms_key",
            )


def _group_name_hint(settings: Settings, name: str) -> str:
    names = [group.name for group in settings.cluster.groups]
    near = get_close_matches(name, names, 1, 0.6)
    if near:
        return f"Did you mean `{near[0]}`?"
    return f"Instance groups are: {', '.join(names) or 'none'}"
