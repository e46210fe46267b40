"""The three lifecycle modes and what each of them can serve."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.rules.cluster import AT
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.cluster import LIFECYCLE_MODES
from hyperpod_kit.model.platform import by_platform


def mode(settings: Settings) -> Iterator[Finding]:
    """The mode is one of the three, and it can make what the configuration asks for."""
    chosen = settings.cluster.lifecycle_mode
    if chosen not in LIFECYCLE_MODES:
        yield Finding(
            "HPK-L001",
            f"{AT}.lifecycle_mode",
            f"`{chosen}` is not a lifecycle mode",
            f"Use one of {', '.join(LIFECYCLE_MODES)}",
        )
    if settings.parameters.workload_manager != "slurm":
        yield Finding(
            "HPK-L002",
            "workload_manager",
            f"`{settings.parameters.workload_manager}`: only Slurm clusters are made here",
            'Use "slurm"',
        )
    if chosen == "ami_only":
        for mount, place in zip(settings.placed_mounts, settings.mount_places):
            if not by_platform(mount):
                yield Finding(
                    "HPK-L003",
                    place,
                    f"nobody mounts `{mount.name}`: in ami_only mode no lifecycle script runs",
                    "Use on_init_complete, or remove the mount",
                )
