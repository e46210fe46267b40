"""The slurmctld of this machine, while it runs: where it has its state, and which copies of it are its own work.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import calendar
import re
import time
from dataclasses import dataclass
from typing import Optional

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node import systemd
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.slurm.lease_keeper import UNIT, LeaseKeeper
from hyperpod_kit.node.slurm.saved_state import RunningSlurmctld, StateCopy
from hyperpod_kit.node.slurm.state import StateLocation

_LOCATION = re.compile(r"(?m)^StateSaveLocation\s*=\s*(\S+)\s*$")
_BOOT_TIME = re.compile(r"(?m)^BOOT_TIME\s*=\s*(\S+)\s*$")


SHOWN_TO = 1.0
"""Seconds: slurmctld shows the second in which it has started."""


@dataclass(frozen=True)
class SlurmctldStatus:
    """What it says of itself. `location`: the directory in which it saves; `since`: Unix seconds of its start, None
    where it does not say."""

    location: str
    since: Optional[float]


def query_slurmctld(node: Node) -> Optional[SlurmctldStatus]:
    """Query where the running slurmctld saves and since when it runs; None when it does not run or respond, or
    another machine's may respond."""
    if node.config.controllers > 1 or not systemd.is_active(node, UNIT):
        return None
    try:
        # Times in UTC: scontrol formats them.
        argv = [node.paths.scontrol, "show", "config"]
        printed = node.runner.run(argv, timeout=20, check=False, env={"TZ": "UTC"}).stdout
    except RunError:
        return None
    location = _LOCATION.search(printed)
    if location:
        return SlurmctldStatus(location.group(1), _parse_boot_time(printed))
    return None


def running_slurmctld_from_status(
    node: Node, where: StateLocation, slurmctld: Optional[SlurmctldStatus]
) -> Optional[RunningSlurmctld]:
    """Return on which copy of the state the running slurmctld works, and whether it alone can have saved the
    shared one since its start. None: not known."""
    if slurmctld is None or slurmctld.since is None:
        return None
    if slurmctld.location == where.state:
        copy = StateCopy.SHARED
    else:
        copy = StateCopy.LOCAL
    return RunningSlurmctld(copy, slurmctld.since, _has_held_lease(node, where, slurmctld.since))


def _has_held_lease(node: Node, where: StateLocation, since: float) -> bool:
    """Whether this machine has had the lease on the shared state from that moment until now."""
    try:
        taken = LeaseKeeper(node, where, lambda text: None).owned_since()
    except NodeError:
        return False
    return taken is not None and taken < since + SHOWN_TO


def _parse_boot_time(printed: str) -> Optional[float]:
    match = _BOOT_TIME.search(printed)
    try:
        if match:
            return float(calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")))
        return None
    except ValueError:
        return None
