"""The steps of a node's creation, in order: that is what happens. Which of them a node needs is decided in plan.py,
running them is apply.py's.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Tuple

from hyperpod_kit.node import (
    containers,
    fuse_conf,
    groups,
    homes,
    kit_units,
    logind,
    packet_rules,
    remove_stale,
    scripts,
    shares,
    users,
    wait_for_dns,
)
from hyperpod_kit.node.clients import install as clients
from hyperpod_kit.node.mounts import bring_up
from hyperpod_kit.node.optional import accounting, registry
from hyperpod_kit.node.secrets import secret_files as secrets
from hyperpod_kit.node.slurm import controller, plugin, worker
from hyperpod_kit.node.step import Planned

STEPS: Tuple[Planned, ...] = (
    wait_for_dns.STEP,
    users.STEP,
    groups.STEP,
    secrets.STEP,
    clients.STEP,
    fuse_conf.STEP,
    scripts.BEFORE_MOUNTS_STEPS,
    # Old mounts go first: a renamed mount uses the same path.
    remove_stale.STEP,
    kit_units.STEP,
    packet_rules.STEP,
    bring_up.STEP,
    homes.STEP,
    shares.STEP,
    kit_units.TIMERS_STEP,
    # Those that hyperpod_kit.steps asks for, here and below.
    *registry.AFTER_MOUNTS_STEPS,
    scripts.AFTER_MOUNTS_STEPS,
    # Always: enroot may be installed later, and does nothing with it until then.
    containers.STEP,
    logind.STEP,
    plugin.STEP,
    # slurmdbd before slurmctld is pointed at it; what it is to know before a job can come.
    accounting.DATABASE_STEP,
    controller.HOOKS_STEP,
    accounting.STEP,
    controller.STEP,
    worker.STEP,
    # Those that it asks for no more.
    registry.OFF_STEP,
    scripts.AFTER_SLURM_STEPS,
)
