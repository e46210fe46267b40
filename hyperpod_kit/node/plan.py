"""Which steps a node needs: pure, from its facts and its configuration.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Sequence, Tuple

from hyperpod_kit.errors import UsageError
from hyperpod_kit.model.cluster import LIFECYCLE_MODES
from hyperpod_kit.model.mounts import Mount
from hyperpod_kit.node.steps import Step


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


def plan(steps: Sequence[Step], mounts: Sequence[Mount], role: str, mode: str) -> Tuple[Planned, ...]:
    """The steps of a node of `role` with these mounts, in order. Raises UsageError for a mode that does not exist."""
    if mode not in LIFECYCLE_MODES:
        raise UsageError(f"no mode {mode}; there are {', '.join(LIFECYCLE_MODES)}")
    planned = []
    for step in steps:
        if role not in step.roles or mode not in step.modes:
            continue
        if step.each_mount:
            planned += [Planned(step, mount.name, mount.required) for mount in mounts]
        else:
            planned.append(Planned(step, "", step.required))
    return tuple(planned)
