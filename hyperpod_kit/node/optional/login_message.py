"""What whoever logs in reads first: which node of which cluster this is, and whether its mounts serve.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib

from hyperpod_kit.model.optional_steps import LoginMessage
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.untrusted import by_descriptor

PROGRAM = "/etc/update-motd.d/60-hyperpod-kit"
MESSAGE_PATH = "/var/lib/hyperpod-kit/steps/login-message/words"

# pam_motd runs it at every login, so it reads two directories of this machine and no mount.
TEXT = f"""\
#!/bin/sh
# Written by hyperpod-kit from the bundle's configuration: change that, not this file.
cat {MESSAGE_PATH}
degraded=$(ls /run/hyperpod-kit/degraded 2>/dev/null | tr '\\n' ' ')
if [ -n "$degraded" ]; then
    echo "  mounts      NOT SERVING: ${{degraded}}(hyperpod-kit node mounts)"
else
    echo "  mounts      ok"
fi
echo
"""


def _message(node: Node, configuration: LoginMessage) -> str:
    facts = node.facts
    lines = [
        "",
        f"  cluster     {node.config.cluster_name}, {facts.region}",
        f"  this node   {facts.role}, {facts.group}, {facts.instance_id}, {facts.address}",
        f"  controller  {', '.join(facts.controllers) or facts.controller_address or 'unknown'}",
        *(f"  {line}" for line in configuration.text.splitlines()),
    ]
    return "\n".join(lines) + "\n"


def _configuration(node: Node) -> LoginMessage:
    configuration = node.config.steps.login_message
    assert configuration is not None, "the step is on"
    return configuration


def _apply_login_message(node: Node) -> StepOutcome:
    changed = write_if_different(node.paths.under_root(MESSAGE_PATH), _message(node, _configuration(node)))
    return StepOutcome(write_if_different(node.paths.under_root(PROGRAM), TEXT, 0o755) or changed)


def _describe_pending_changes(node: Node) -> str:
    expected = {PROGRAM: TEXT, MESSAGE_PATH: _message(node, _configuration(node))}
    differing = [path for path, text in expected.items() if read_text(node.paths.under_root(path)) != text]
    if differing:
        return f"write {', '.join(differing)}"
    return ""


def _undo_login_message(node: Node) -> str:
    for path in (PROGRAM, MESSAGE_PATH):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(node.paths.under_root(path))
    return ""


STEP = OptionalStep("login_message", _apply_login_message, _describe_pending_changes, _undo_login_message)
