"""The three lifecycle modes and what each of them can serve."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.rules.cluster import AT
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.states import LIFECYCLE_MODES, LifecycleMode


def check_lifecycle_mode_and_workload_manager(settings: Settings) -> Iterator[Finding]:
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
    if chosen == LifecycleMode.AMI_ONLY:
        for mount, at in settings.all_mounts_with_platform_flag:
            if not mount.platform:
                yield Finding(
                    "HPK-L003",
                    at,
                    f"`{mount.name}` is not mounted: in ami_only mode no lifecycle script runs",
                    "Use on_init_complete, or remove the mount",
                )


STRATEGIES = ("Merge", "Managed", "Overwrite")
CONTINUOUS = "Continuous"


def check_slurm_config_strategy(settings: Settings) -> Iterator[Finding]:
    """Who owns slurm.conf: what HyperPod does with a change that it finds there."""
    cluster = settings.cluster
    strategy = cluster.slurm_config_strategy
    if strategy is not None and strategy not in STRATEGIES:
        yield Finding(
            "HPK-L004",
            f"{AT}.slurm_config_strategy",
            f"`{strategy}` is not a strategy",
            f"Use one of {', '.join(STRATEGIES)}",
        )
    elif strategy is not None and cluster.lifecycle_mode == LifecycleMode.ON_CREATE:
        yield Finding(
            "HPK-L005",
            f"{AT}.slurm_config_strategy",
            "in on_create mode HyperPod does not configure Slurm, so there is nothing for a strategy to do",
            "Remove it",
        )
    elif strategy in ("Managed", "Overwrite") and cluster.lifecycle_mode == LifecycleMode.ON_INIT_COMPLETE:
        what = "is written over"
        if strategy == "Managed":
            what = "is `Configuration drift detected.`, and updates fail"
        yield Finding(
            "HPK-L006",
            f"{AT}.slurm_config_strategy",
            f"{strategy}: what our script adds to slurm.conf (the hooks that gate mounts) {what}",
            "Use Merge, or remove the key",
        )
    given = settings.parameters.passthrough
    if given.get("slurm_configurations") and cluster.lifecycle_mode != LifecycleMode.ON_CREATE:
        yield Finding(
            "HPK-L007",
            "slurm_configurations",
            "has no effect: HyperPod reads it from provisioning_parameters.json, which fails and rolls back when "
            "SlurmConfig is set too",
            "Use accounting_database with continuous provisioning, or on_create mode",
            WARNING,
        )


def check_continuous_provisioning(settings: Settings) -> Iterator[Finding]:
    """What continuous provisioning asks for, and what needs it."""
    cluster = settings.cluster
    chosen = cluster.node_provisioning_mode
    if chosen is not None and chosen != CONTINUOUS:
        yield Finding(
            "HPK-L008",
            f"{AT}.node_provisioning_mode",
            f"`{chosen}` is not a provisioning mode",
            f"Use {CONTINUOUS}, or remove the key",
        )
    if chosen == CONTINUOUS and cluster.lifecycle_mode == LifecycleMode.ON_CREATE:
        yield Finding(
            "HPK-L009",
            f"{AT}.node_provisioning_mode",
            "continuous provisioning needs HyperPod to configure Slurm, and refuses a provisioning_parameters.json, "
            "which on_create mode ships",
            "Use on_init_complete mode",
        )
    if chosen == CONTINUOUS and cluster.slurm_config_strategy is not None:
        yield Finding(
            "HPK-L010",
            f"{AT}.slurm_config_strategy",
            "a cluster with continuous provisioning always merges, and refuses a strategy",
            "Remove it",
        )
    if cluster.accounting_database is not None and chosen != CONTINUOUS:
        yield Finding(
            "HPK-L011",
            f"{AT}.accounting_database",
            "only clusters with continuous provisioning can have one",
            f'Add "node_provisioning_mode": "{CONTINUOUS}", or remove it',
        )
