"""Controllers and login nodes of a cluster that is imported: which groups they are, and what else is said of them.

AWS's `slurm_configurations` are the settings of several controllers; some of it goes nowhere.

What they mean is in AWS's multi_headnode_setup/headnode_setup.sh (awsome-distributed-training at 7217859) and in
"Preparing and uploading lifecycle scripts" of its multi-head pages.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from hyperpod_kit.model.states import LifecycleMode, Role

NAMED_BY_ROLE = (Role.CONTROLLER, Role.LOGIN)
"""Roles whose names stand in the names of groups, by which a listing without roles says what they are."""


def set_on_create_for_slurm_configurations(values: dict[str, Any]) -> list[str]:
    """Set on_create mode where `slurm_configurations` is given; return notes of its settings that are not
    taken over."""
    given = values.get("slurm_configurations")
    if not isinstance(given, Mapping):
        return []
    values.setdefault("hyperpod_kit", {}).setdefault("cluster", {}).setdefault(
        "lifecycle_mode", LifecycleMode.ON_CREATE.value
    )
    notes = []
    if given.get("slurm_shared_directory"):
        notes.append(
            f"the state that AWS's scripts keep below {given['slurm_shared_directory']}/aws/hyperpod is not taken "
            "over: here it is in .hyperpod-kit on the mount of slurm.state, so the jobs of a cluster that runs are not "
            "known to controllers with this bundle"
        )
    if given.get("slurm_database_endpoint"):
        notes.append("slurm_database_endpoint: there is no accounting on several controllers (HPK-G022)")
    if given.get("slurm_sns_arn"):
        notes.append("slurm_sns_arn: nobody is told of a failover; SlurmctldPrimaryOnProg of a script of yours can")
    return notes


def set_heads_guessed_by_name(values: dict[str, Any], groups: Sequence[Any]) -> list[str]:
    """Set controller_group and login_group from the names of the groups where nothing else says them;
    return notes.

    AWS's announcement of HyperPod has such a listing: its groups are `controller-group` and
    `worker-group`.
    """
    notes = []
    for role in NAMED_BY_ROLE:
        key = f"{role}_group"
        named = [name for name in groups if isinstance(name, str) and role.value in name.lower()]
        if key in values or len(named) != 1:
            continue
        values[key] = named[0]
        notes.append(f"who the {role} is, which nothing says: it is `{named[0]}` here, by its name ({key})")
    return notes
