"""Which steps a node needs: pure, from its facts and its configuration.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence, Tuple

from hyperpod_kit.errors import UsageError
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.states import LIFECYCLE_MODES
from hyperpod_kit.node.machine.step import Planned, Step


def plan(steps: Sequence[Planned], config: NodeConfig, role: str, group: str, mode: str) -> Tuple[Step, ...]:
    """Return the steps that a node of `role` in instance group `group` needs in `mode`, in order. Raises
    UsageError for an unknown mode."""
    if mode not in LIFECYCLE_MODES:
        raise UsageError(f"no mode {mode}; there are {', '.join(LIFECYCLE_MODES)}")
    needed = [step for step in steps if role in step.roles and mode in step.modes]
    return tuple(planned for step in needed for planned in step.steps_for(config, role, group))
