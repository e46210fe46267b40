"""AWS's `slurm_configurations`, the settings of several controllers: what of it goes where, and what nowhere.

What they mean is in AWS's multi_headnode_setup/headnode_setup.sh (awsome-distributed-training at 7217859) and in
"Preparing and uploading lifecycle scripts" of its multi-head pages.
"""

from __future__ import annotations

from typing import Any, Mapping

from hyperpod_kit.model.states import LifecycleMode


def several_controllers(values: dict[str, Any]) -> list[str]:
    """Notes of what goes nowhere; the values get the lifecycle mode that AWS sets several controllers up in."""
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
