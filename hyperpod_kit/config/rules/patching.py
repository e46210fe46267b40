"""AMI updates that AWS begins by itself, and memory that AWS takes: against what a job and a controller have there."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.rules.cluster import AT
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.cluster import AutoPatch
from hyperpod_kit.model.states import Role
from hyperpod_kit.untrusted.text import counted

WHEN_IDLE = "WhenIdle"
WHEN_ALL_IDLE = "WhenAllIdle"
IDLE_WAIT_HOURS = 24
"""Of AWS, where nobody says idle_wait_seconds."""
SHARED_MEMORY_PERCENT = 50
"""Of a node's memory that /dev/shm may take, where checkpoints in memory lie: the kernel's default for a tmpfs."""
LEAST_MEMORY_PERCENT = 25
"""That is left for the processes of a job before a warning."""


def check_updates_of_controller(settings: Settings) -> Iterator[Finding]:
    """An update replaces root volumes: what slurmctld has on one goes with it."""
    if settings.slurm_state_mount_name:
        return
    for index, group in enumerate(settings.cluster.groups):
        if group.role != Role.CONTROLLER:
            continue
        for key, given in (("auto_patch", group.auto_patch), ("scheduled_update", group.scheduled_update)):
            if given is not None:
                yield Finding(
                    "HPK-L014",
                    f"{AT}.instance_groups[{index}].{key}",
                    "an update replaces the controller's root volume, on which slurmctld's state is: every job and "
                    "queue is lost, and nobody is asked",
                    "Keep the state on a mount (hyperpod_kit.slurm.state), or remove the key and type update-software",
                )


def check_patches_and_jobs(settings: Settings) -> Iterator[Finding]:
    """Nodes that wait for a patch take no job, neither a new one nor one that comes back."""
    for index, group in enumerate(settings.cluster.groups):
        at = f"{AT}.instance_groups[{index}]"
        patch, update = group.auto_patch, group.scheduled_update
        if patch is not None and patch.strategy not in (WHEN_IDLE, WHEN_ALL_IDLE):
            yield Finding(
                "HPK-G038",
                f"{at}.auto_patch.strategy",
                f"`{patch.strategy}` is no strategy for a cluster with Slurm: AWS has DrainFirst for EKS alone",
                "Use WhenIdle or WhenAllIdle",
            )
        elif patch is not None and group.role == Role.COMPUTE:
            yield from _check_cordon(f"{at}.auto_patch", group.name, patch)
        if patch is not None and update is not None:
            yield Finding(
                "HPK-G041",
                f"{at}.scheduled_update",
                "the group has auto_patch too: an update by the clock comes into the wait of a patch for idle nodes, "
                "and ends the jobs that the patch waits for",
                "Keep one of the two",
            )
        elif update is not None and group.role == Role.COMPUTE:
            yield Finding(
                "HPK-G042",
                f"{at}.scheduled_update",
                f"the update looks at no job: whatever runs on `{group.name}` then ends, and its nodes' memory with "
                "checkpoints that are not on storage yet",
                "Use auto_patch with WhenIdle, or hyperpod-kit update-software --when-idle",
                WARNING,
            )


def _check_cordon(at: str, group: str, patch: AutoPatch) -> Iterator[Finding]:
    hours = f"{IDLE_WAIT_HOURS} hours (AWS's default)"
    if patch.idle_wait_seconds is not None:
        hours = counted(patch.idle_wait_seconds / 3600, "hour", spec="g")
    if patch.strategy == WHEN_ALL_IDLE:
        yield Finding(
            "HPK-G039",
            f"{at}.strategy",
            f"while one job runs on `{group}`, no other node of it takes a job, for up to {hours}: nor does a job that "
            "fails or loses a node then come back",
            "Use WhenIdle, which gives each node back once it is patched",
            WARNING,
        )
    elif patch.idle_wait_seconds is None:
        yield Finding(
            "HPK-G040",
            f"{at}.idle_wait_seconds",
            f"a job that queues itself again while `{group}` is patched waits for as many patched nodes as it needs, "
            f"and nodes that run other jobs are not patched for up to {hours}",
            "Say how long that may be: 3600 is the least",
            WARNING,
        )


def check_tiered_storage_memory(settings: Settings) -> Iterator[Finding]:
    """AWS's checkpoints in memory and ours take the same memory."""
    tiered = settings.cluster.tiered_storage
    if tiered is None or tiered.mode != "Enable":
        return
    at = f"{AT}.tiered_storage"
    yield Finding(
        "HPK-K010",
        f"{at}.mode",
        "AWS documents managed tiered checkpointing for clusters on EKS, and says nothing about Slurm: its daemon "
        "takes memory of every node, and nothing of this kit uses it",
        "Remove tiered_storage: checkpoints in memory need no daemon of AWS's",
        WARNING,
    )
    if tiered.memory_percent is None:
        return
    left = 100 - SHARED_MEMORY_PERCENT - tiered.memory_percent
    if left < LEAST_MEMORY_PERCENT:
        yield Finding(
            "HPK-K011",
            f"{at}.memory_percent",
            f"{tiered.memory_percent} % of each node's memory for AWS's daemon and up to {SHARED_MEMORY_PERCENT} % for "
            f"/dev/shm, where checkpoints in memory lie, leave {left} % for the job: its processes would be killed",
            f"Use {100 - SHARED_MEMORY_PERCENT - LEAST_MEMORY_PERCENT} or less",
        )
