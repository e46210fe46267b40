"""What to do about a step that fails stands beside the reason, for a person too."""

from __future__ import annotations

from typing import Any, List

from hyperpod_kit.errors import NodeError
from hyperpod_kit.node.commands.creation_commands import format_previewed_step
from hyperpod_kit.node.creation.apply import apply, preview
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import Step

REASON, HINT = "two copies of the state", "hyperpod-kit node apply --slurm-state shared"


def refuse(node: Node) -> Any:
    raise NodeError(REASON, hint=HINT)


def test_a_failed_step_says_what_to_do(make_node: Any) -> None:
    lines: List[str] = []
    step = Step("slurm-hooks", refuse, refuse)
    status = apply(make_node([]).node, [step], "on_create", lines.append)
    assert not status["ok"] and f"hint: {HINT}" in "\n".join(lines).splitlines()
    assert lines[-1].startswith("hyperpod-kit: summary: failed"), "AWS shows the last line"


def test_a_step_that_cannot_be_foreseen_says_what_to_do(make_node: Any) -> None:
    [foreseen] = preview(make_node([]).node, [Step("slurm-hooks", refuse, refuse)])
    assert format_previewed_step(foreseen).splitlines() == [f"slurm-hooks: cannot tell: {REASON}", f"hint: {HINT}"]
