"""Where slurmctld keeps its state: a controller that is replaced knows only what outlived its machine."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.slurm_state import OWN_DISK, slurm_state_unfit_reason
from hyperpod_kit.model.states import LifecycleMode

AT = "hyperpod_kit.slurm.state"


def check_state_mount(settings: Settings) -> Iterator[Finding]:
    """The state is on a mount that can hold it, or somebody has said that it need not outlive the machine."""
    requested = settings.slurm_state
    group = settings.parameters.controller_group
    if requested not in (None, OWN_DISK):
        mount = next((mount for mount in settings.mounts if mount.name == requested), None)
        fitting = [candidate.name for candidate in settings.mounts if not slurm_state_unfit_reason(candidate, group)]
        problem = "there is no mount of that name"
        if mount:
            problem = slurm_state_unfit_reason(mount, group)
        if problem:
            yield Finding(
                "HPK-L012",
                AT,
                f"slurmctld's state cannot be kept on `{requested}`: {problem}",
                f"Use {' or '.join(fitting) or 'a required Lustre, OpenZFS or EFS mount'}, or {OWN_DISK}",
            )
    elif requested is None and not settings.slurm_state_mount_name:
        what = "no mount fits"
        if settings.cluster.lifecycle_mode == LifecycleMode.AMI_ONLY:
            what = "in ami_only mode Slurm's configuration is HyperPod's alone"
        yield Finding(
            "HPK-L013",
            AT,
            f"slurmctld's state stays on the controller's own disk ({what}): when that machine is replaced, or its AMI "
            "is updated, every job and queue is lost and job numbers start at 1 again",
            f"Mount FSx or EFS on the controller and require it, or say {OWN_DISK} to accept that",
            WARNING,
        )
