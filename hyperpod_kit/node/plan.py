"""Which steps a node needs: pure, from its facts and its configuration.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Sequence, Tuple

from hyperpod_kit.errors import UsageError
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.steps import Step

MODES = ("on_create", "on_init_complete")


@dataclass(frozen=True)
class Planned:
    """One step that will run. `title`: its name in the log, `mount:home` for a step about a mount."""

    step: Step
    subject: str
    required: bool

    @property
    def title(self) -> str:
        return f"{self.step.name}:{self.subject}" if self.subject else self.step.name

    def to_dict(self) -> Dict[str, Any]:
        return {"step": self.title, "required": self.required}


def plan(steps: Sequence[Step], config: NodeConfig, role: str, mode: str) -> Tuple[Planned, ...]:
    """The steps of a node of `role`, in order. Raises UsageError for a mode that no step knows."""
    if mode not in MODES:
        raise UsageError(f"no mode {mode}; there are {' and '.join(MODES)}")
    planned = []
    for step in steps:
        if role not in step.roles or mode not in step.modes:
            continue
        if step.each_mount:
            planned += [Planned(step, mount.name, mount.required) for mount in config.mounts_for(role)]
        else:
            planned.append(Planned(step, "", step.required))
    return tuple(planned)
