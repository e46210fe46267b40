"""The Prolog's question: may a job start on this node? Bounded, no Slurm command, no inherited descriptor.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List, Optional

from hyperpod_kit.model.mounts import MountStatus
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.health.look import check_all
from hyperpod_kit.node.timing import wait_for

REPAIR_SECONDS = 20.0
"""How long the gate waits for a repair: a node must not be drained for a daemon that is back in two seconds."""


def unhealthy_mounts(node: Node) -> List[MountStatus]:
    """The required mounts of this node that a job cannot use, right now."""
    required = [mount for mount in node.mounts if mount.required]
    return [status for status in check_all(node, required) if not status.healthy]


def closed_by(node: Node) -> List[MountStatus]:
    """The mounts that keep a job from starting; empty when it may. Asks for one repair and waits for it."""
    bad = unhealthy_mounts(node)
    if not bad:
        return []
    units = [f"hyperpod-kit-health-{status.name}.service" for status in bad]
    # Through systemd and without waiting: nothing that is started here may live in slurmd's process tree.
    node.runner.run(["systemctl", "start", "--no-block", *units], timeout=10, check=False)
    last = [bad]

    def look() -> Optional[bool]:
        last[0] = unhealthy_mounts(node)
        return None if last[0] else True

    wait_for(look, seconds=REPAIR_SECONDS, clock=node.clock, first=0.5, longest=2.0)
    return last[0]


def reason(bad: List[MountStatus]) -> str:
    """One line for slurmd's log and the drain reason."""
    return "hyperpod-kit: " + "; ".join(f"mount {status.name} at {status.path} is {status.state}"
                                        f"{': ' + status.detail if status.detail else ''}" for status in bad)
