"""Several controllers: what Slurm and HyperPod need before one of them can take over from another.

Sources: AWS's "SageMaker HyperPod multi-head node support" and "Migrating to API-driven Slurm configuration" (whose
part on multi-head says that the API has no words for it); Slurm's slurm.conf(5), SlurmctldHost and StateSaveLocation.
"""

from __future__ import annotations

import posixpath
from typing import Iterator

from hyperpod_kit.config.mounts.mount_paths import is_file_path_at_or_below
from hyperpod_kit.config.rules.cluster import AT
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.states import LifecycleMode, Role

DIRECTORY = "slurm_configurations.slurm_shared_directory"


def check_several_controllers_mode_state_accounting(settings: Settings) -> Iterator[Finding]:
    """Lifecycle scripts set them up, their state is one, and nothing is asked for that was not seen to work."""
    if settings.controller_count < 2:
        return
    groups = settings.cluster.groups
    at = next(
        f"{AT}.instance_groups[{index}].count" for index, group in enumerate(groups) if group.role == Role.CONTROLLER
    )
    if settings.cluster.lifecycle_mode != LifecycleMode.ON_CREATE:
        yield Finding(
            "HPK-G020",
            at,
            f"{settings.controller_count} controllers, and HyperPod sets several up by lifecycle scripts only: "
            "its API does not support their shared state",
            "Use lifecycle_mode on_create",
        )
        return
    mount = next(
        (candidate for candidate in settings.mounts if candidate.name == settings.slurm_state_mount_name), None
    )
    if mount is None:
        yield Finding(
            "HPK-G021",
            at,
            f"{settings.controller_count} controllers, and no mount that all of them have for Slurm's state: "
            "the one that "
            "takes over would know no job",
            "Mount FSx for Lustre, OpenZFS or EFS on the controllers and require it, and leave slurm.state out or name "
            "it there",
        )
    if settings.steps.accounting is not None:
        yield Finding(
            "HPK-G022",
            "hyperpod_kit.steps.accounting",
            f"{settings.controller_count} controllers, and accounting has been seen to work on clusters with one only",
            "Leave it out, or keep one controller",
        )
    given = settings.parameters.passthrough.get("slurm_configurations")
    directory = None
    if isinstance(given, dict):
        directory = given.get("slurm_shared_directory")
    if (
        mount is not None
        and isinstance(directory, str)
        and not is_file_path_at_or_below(posixpath.normpath(directory), mount.path)
    ):
        yield Finding(
            "HPK-G023",
            DIRECTORY,
            f"`{directory}` is not on {mount.path}, where Slurm's state is kept",
            f"Say {mount.path}, or name the other mount in hyperpod_kit.slurm.state",
        )
