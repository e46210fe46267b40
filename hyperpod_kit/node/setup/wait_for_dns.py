"""Name resolution at creation: HyperPod restarts the resolver in a node's first seconds.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List, Optional, Sequence

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.facts import NodeFacts
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.machine.timing import wait_for

RESOLVED_WITHIN = 60.0


def mount_host_names(mounts: Sequence[Mount], facts: NodeFacts) -> List[str]:
    """The host names that the mounts need, each once; those of AWS's services only where the region is known."""
    names = dict.fromkeys(mount.host(facts.region, facts.dns_suffix) for mount in mounts)
    return [name for name in names if name]


def wait_until_resolvable(node: Node, seconds: float = RESOLVED_WITHIN) -> None:
    """Wait until every name of the mounts resolves. Raises NodeError with those that do not."""
    missing = mount_host_names(node.mounts, node.facts)

    def resolve_all() -> Optional[bool]:
        while missing:
            # A command, because getaddrinfo(3) has no deadline.
            try:
                node.runner.run(["getent", "ahosts", missing[0]], timeout=10)
            except RunError:
                return None
            missing.pop(0)
        return True

    if wait_for(resolve_all, seconds=seconds, clock=node.clock, first=0.5) is None:
        raise NodeError(
            f"{missing[0]} does not resolve after {seconds:g} s",
            hint="check the VPC: DNS resolution, DNS host names, a route to the service",
        )


def _apply_dns_wait(node: Node) -> StepOutcome:
    wait_until_resolvable(node)
    return StepOutcome()


STEP = Step("names", _apply_dns_wait, required=False)
