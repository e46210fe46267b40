"""One optional step: what it does where it is on, and how it is taken back where it was on before.

Whoever turns a step on leaves a mark first, so that a step that is off costs one look at a directory, and one that was
killed in the middle is taken back as well.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Callable, List, Tuple

from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.states import ROLES
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import write_if_different
from hyperpod_kit.node.machine.step import SCRIPTED, Step, StepOutcome
from hyperpod_kit.untrusted import by_descriptor


@dataclass(frozen=True)
class OptionalStep:
    """`key`: of hyperpod_kit.steps; `stage`: of a key with several steps, which of them.

    run, pending: as a step's; undo: takes back what `run` does on a node on which it may have run, in words, ""
    for nothing; required: whether a failure fails the node.
    """

    key: str
    run: Callable[[Node], StepOutcome]
    pending: Callable[[Node], str]
    undo: Callable[[Node], str]
    stage: str = ""
    required: bool = False
    after_success: bool = False
    roles: Tuple[str, ...] = ROLES
    modes: Tuple[str, ...] = SCRIPTED

    @property
    def name(self) -> str:
        """Of the step: `accounting` or `accounting-database`."""
        return "-".join(part for part in (self.key.replace("_", "-"), self.stage) if part)

    def steps_for(self, config: NodeConfig, role: str, group: str) -> Tuple[Step, ...]:
        """Return the step for a node of that role; () where the configuration does not ask for it."""
        if self.key not in config.steps.enabled_step_names:
            return ()
        return (
            Step(self.name, self._mark_and_run, self.pending, required=self.required, after_success=self.after_success),
        )

    def _mark_and_run(self, node: Node) -> StepOutcome:
        write_if_different(node.paths.optional_step_begun_mark(self.name), "")
        return self.run(node)

    def was_begun_and_not_undone(self, node: Node) -> bool:
        """Return whether it has run here, to its end or not, and was not undone."""
        return os.path.exists(node.paths.optional_step_begun_mark(self.name))

    def is_disabled_or_for_other_role(self, node: Node) -> bool:
        """Whether this node is not to have it."""
        return self.key not in node.config.steps.enabled_step_names or node.facts.role not in self.roles


def steps_to_undo(node: Node, steps: Tuple[OptionalStep, ...]) -> List[OptionalStep]:
    """Return the steps that were on here and are not any more, last first: what was built on another goes
    before it."""
    return [
        step
        for step in reversed(steps)
        if step.is_disabled_or_for_other_role(node) and step.was_begun_and_not_undone(node)
    ]


def undo_leftovers(node: Node, steps: Tuple[OptionalStep, ...]) -> List[str]:
    """Undo the steps that are switched off, and delete their marks; return what was done, in words. Raises
    what an `undo` raises: its mark stays, and it is tried again."""
    done = []
    for step in steps_to_undo(node, steps):
        summary = step.undo(node)
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(node.paths.optional_step_begun_mark(step.name))
        if summary:
            done.append(f"{step.name} off: {summary}")
        else:
            done.append(f"{step.name} off")
    return done
