"""The training environment: nodes can make it where it is to be, for each architecture, in the time that they have."""

from __future__ import annotations

import math
from typing import Iterator, Optional

from hyperpod_kit.config.fields.fields import fits_field_pattern_if_any
from hyperpod_kit.config.rules.scripts import LONGEST
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.cluster import InstanceGroup
from hyperpod_kit.model.instance_types import architecture as architecture_of
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.optional_steps import LOGIN_USER
from hyperpod_kit.model.states import Role

AT = "hyperpod_kit.steps.training_environment"
ARCHITECTURES = ("x86_64", "arm64")
OWN_DISK = ("/opt", "/var/lib")
"""Below these a directory may be on a node's own disk; elsewhere a path without a mount is a typing mistake."""
_SHORTEST = 60.0


def check_environment_place(settings: Settings) -> Iterator[Finding]:
    """Report a directory that is on no mount that could hold the environment, or that some node does not have."""
    environment = settings.steps.training_environment
    if environment is None or not fits_field_pattern_if_any(f"{AT}.path", environment.path):
        return
    path = environment.path
    mount = _mount_containing(settings, path)
    if mount is None:
        if not any(path.startswith(f"{directory}/") for directory in OWN_DISK):
            yield Finding(
                "HPK-O045",
                f"{AT}.path",
                f"{path} is on no mount of the configuration",
                f"Name a directory on a mount, or one below {' or '.join(OWN_DISK)} on each node's own disk",
            )
        return
    reason = _unfit_mount_reason(settings, mount)
    if reason:
        yield Finding(
            "HPK-O046",
            f"{AT}.path",
            f"{path} is on the mount `{mount.name}`: {reason}",
            "Use a Lustre, OpenZFS or EFS mount that can be written, or an nvme mount, on all login and compute nodes",
        )


def check_environment_requirements(settings: Settings) -> Iterator[Finding]:
    """Report lock files for architectures that there are not, and architectures of nodes without a lock file."""
    environment = settings.steps.training_environment
    if environment is None:
        return
    for architecture in environment.requirements:
        if architecture not in ARCHITECTURES:
            yield Finding(
                "HPK-O047",
                f"{AT}.requirements.{architecture}",
                f"`{architecture}` is not an architecture",
                f"Use one of {', '.join(ARCHITECTURES)}",
            )
    missing: dict[str, str] = {}
    for group in _groups_with_environment(settings):
        for instance_type in group.types:
            architecture = architecture_of(instance_type)
            if architecture not in environment.requirements:
                missing.setdefault(architecture, group.name)
    for architecture, name in missing.items():
        yield Finding(
            "HPK-O048",
            f"{AT}.requirements",
            f"there is no lock file for {architecture}, which {name} has",
            f'Add "{architecture}": "requirements.lock"',
        )


def check_environment_owner_and_time(settings: Settings) -> Iterator[Finding]:
    """Report an owner whom nodes do not have, and a timeout that does not fit into a node's creation."""
    environment = settings.steps.training_environment
    if environment is None:
        return
    known = {LOGIN_USER, *(user.name for user in settings.users)}
    if (
        environment.owner not in known
        and settings.steps.sssd is None
        and fits_field_pattern_if_any(f"{AT}.owner", environment.owner)
    ):
        yield Finding(
            "HPK-O049",
            f"{AT}.owner",
            f"`{environment.owner}` is no user of this configuration",
            "That is right for a user whom the image has; otherwise correct the name",
            WARNING,
        )
    if not _SHORTEST <= environment.timeout <= LONGEST:
        yield Finding(
            "HPK-O050",
            f"{AT}.timeout",
            f"a timeout of {environment.timeout:g} s is out of range",
            f"Use {_SHORTEST:g} to {LONGEST:g} seconds",
        )
        return
    for group in _groups_with_environment(settings):
        scripts = [entry.script.timeout for entry in settings.scripts if entry.script.runs_on(group.role, group.name)]
        seconds = math.fsum([environment.timeout, *scripts])
        if scripts and seconds > LONGEST:
            yield Finding(
                "HPK-O051",
                f"{AT}.timeout",
                f"the environment and the scripts of {group.name} may take {seconds:g} s together, and a creation has "
                "1500 s in all",
                "Shorten the timeouts; `hyperpod-kit node apply` on one node makes the environment beforehand",
                WARNING,
            )
            return


def _groups_with_environment(settings: Settings) -> list[InstanceGroup]:
    return [group for group in settings.cluster.groups if group.role in (Role.LOGIN, Role.COMPUTE)]


def _mount_containing(settings: Settings, path: str) -> Optional[Mount]:
    mounts = [mount for mount in settings.mounts if f"{path}/".startswith(f"{mount.path.rstrip('/')}/")]
    return max(mounts, key=lambda mount: len(mount.path), default=None)


def _unfit_mount_reason(settings: Settings, mount: Mount) -> str:
    """Return why the environment cannot lie on this mount; "" when it can."""
    if not mount.traits.keeps_slurm_state and not mount.traits.local_disk:
        return f"a {mount.kind} mount has no renames and links to build on"
    if mount.read_only:
        return "it is read-only"
    if mount.owner is not None:
        return f"it is the home of {mount.owner}"
    without = [
        group.name for group in _groups_with_environment(settings) if not mount.is_carried_by(group.role, group.name)
    ]
    if without:
        return f"{', '.join(without)} does not mount it"
    return ""
