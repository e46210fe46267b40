"""One step of a node's creation. Each topic exports its own as STEP; steps.py is their order.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, Protocol, Tuple

from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.states import LIFECYCLE_MODES, ROLES, LifecycleMode
from hyperpod_kit.node.machine.context import Node

SCRIPTED = (LifecycleMode.ON_CREATE, LifecycleMode.ON_INIT_COMPLETE)
"""Modes in which HyperPod itself starts our script. In ami_only mode somebody may run it by hand, and Slurm's
configuration stays HyperPod's alone."""


@dataclass(frozen=True)
class StepOutcome:
    """What a step did."""

    changed: bool = False
    detail: str = ""


def no_changes(node: Node) -> str:
    """What a step that only waits would change."""
    return ""


class Planned(Protocol):
    """What stands in the order of the steps: one step, or one for each thing of a kind that the node has."""

    @property
    def roles(self) -> Tuple[str, ...]: ...

    @property
    def modes(self) -> Tuple[str, ...]: ...

    def steps_for(self, config: NodeConfig, role: str, group: str) -> Tuple[Step, ...]:
        """The steps that it is on a node of that role, in that instance group."""


@dataclass(frozen=True)
class Step:
    """One step. It is idempotent and bounded, and says whether it changed anything.

    name: in the log, `mount:home` for a step about a mount;
    pending: what `run` would change now, in words; "" when nothing. It reads and asks, and changes nothing.
    required: a failure fails the node; roles, modes: where and when it is needed;
    after_success: not run once a required step has failed: a node without its data must not join Slurm.
    """

    name: str
    run: Callable[[Node], StepOutcome]
    pending: Callable[[Node], str] = no_changes
    required: bool = True
    after_success: bool = False
    roles: Tuple[str, ...] = ROLES
    modes: Tuple[str, ...] = LIFECYCLE_MODES

    def steps_for(self, config: NodeConfig, role: str, group: str) -> Tuple[Step, ...]:
        """What it is on a node of that role, in that instance group."""
        return (self,)

    def to_dict(self) -> Dict[str, Any]:
        return {"step": self.name, "required": self.required}


@dataclass(frozen=True)
class MountStep:
    """A step for each mount of a node; a mount's own `required` is that of its step. The text is the mount's name."""

    name: str
    run: Callable[[Node, str], StepOutcome]
    pending: Callable[[Node, str], str]
    roles: Tuple[str, ...] = ROLES
    modes: Tuple[str, ...] = LIFECYCLE_MODES

    def steps_for(self, config: NodeConfig, role: str, group: str) -> Tuple[Step, ...]:
        """One step for each mount that such a node carries."""
        return tuple(
            Step(
                f"{self.name}:{mount.name}",
                partial(_call_with_mount_name, self.run, mount.name),
                partial(_call_with_mount_name, self.pending, mount.name),
                required=mount.required,
            )
            for mount in config.mounts_for(role, group)
        )


def _call_with_mount_name(act: Callable[[Node, str], Any], name: str, node: Node) -> Any:
    return act(node, name)
