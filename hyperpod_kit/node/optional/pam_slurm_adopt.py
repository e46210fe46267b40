"""ssh to a compute node only for who has a job there: Slurm's PAM module, behind a door for root and who is named.

Only /etc/pam.d/sshd has our lines, in a block: a console, su and sudo are as they were. Those who are let through never
reach the module, so nothing about Slurm can lock them out, not even that the module has gone.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import List, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.optional_steps import PamSlurmAdopt
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.node.slurm.hooks import with_kit_block, without_kit_block

CONF = "/etc/pam.d/sshd"
DIRECTORIES = ("/opt/slurm/lib/security", "/lib/security", "/usr/lib/{machine}-linux-gnu/security")
LET_THROUGH = "pam_succeed_if.so"


def pam_module() -> Software:
    """Return the module as Software: built for HyperPod's own Slurm, by hand, or from the distribution."""
    directories = [directory.format(machine=os.uname().machine) for directory in DIRECTORIES]
    return Software(
        tuple(f"{directory}/pam_slurm_adopt.so" for directory in directories), ("pam-slurm-adopt",), mode=os.R_OK
    )


def pam_lines(users: Tuple[str, ...], groups: Tuple[str, ...], path: str) -> List[str]:
    """Render the lines of /etc/pam.d/sshd: each of those that let root, a user or a group in jumps over what
    is behind it, the module too."""
    doors = [f"user in {':'.join(dict.fromkeys(('root', *users)))}", *(f"user ingroup {group}" for group in groups)]
    door_lines = [
        f"account [success={len(doors) - number} default=ignore] {LET_THROUGH} quiet {door}"
        for number, door in enumerate(doors)
    ]
    return [*door_lines, f"account required {path}"]


def _configuration(node: Node) -> PamSlurmAdopt:
    configuration = node.config.steps.pam_slurm_adopt
    assert configuration is not None, "the step is on"
    return configuration


def _expected_text(node: Node, path: str) -> str:
    """Text of /etc/pam.d/sshd. Raises NodeError."""
    text = read_text(node.paths.under_root(CONF))
    if text is None:
        raise NodeError(f"no such file: {CONF}; sshd uses no PAM module", hint="install openssh-server")
    if "pam_slurm_adopt" in without_kit_block(text):
        raise NodeError(
            f"{CONF} already names pam_slurm_adopt, outside the kit's block",
            hint="remove that line, or hyperpod_kit.steps.pam_slurm_adopt",
        )
    # At the top: SSSD's profile ends the stack for local users (`sufficient pam_localuser.so` in common-account), and
    # what stands behind that is asked of nobody local.
    return with_kit_block(
        "", pam_lines(_configuration(node).users, _configuration(node).groups, path)
    ) + without_kit_block(text)


def _apply_pam_slurm_adopt(node: Node) -> StepOutcome:
    # Looked at before anything is installed, too: somebody else's stays.
    _expected_text(node, "")
    _refuse_if_sshd_without_pam(node)
    done = [software.ensure_installed(node, pam_module())]
    path = software.find_program(node, pam_module())
    if path is None:
        raise NodeError("pam_slurm_adopt.so is not there")
    door = os.path.join(os.path.dirname(pam_module().programs[-1]), LET_THROUGH)
    if not os.path.exists(node.paths.under_root(door)):
        raise NodeError(f"{door} is missing: without it root could not log in either", hint="install libpam-modules")
    if write_if_different(node.paths.under_root(CONF), _expected_text(node, path)):
        done.append("ssh is limited to users with a job on this node")
    summary = "; ".join(part for part in done if part)
    return StepOutcome(bool(summary), summary)


def _refuse_if_sshd_without_pam(node: Node) -> None:
    """Raise NodeError where sshd does not use PAM at all: the step would promise what is not so."""
    try:
        settings = node.runner.run(["sshd", "-T"], timeout=30).stdout.lower().splitlines()
    except RunError as err:
        raise NodeError(f"sshd rejects its configuration: {err.stderr.strip() or err.message}") from err
    if "usepam yes" not in settings:
        raise NodeError("sshd has UsePAM off, so it uses no PAM module", hint="set UsePAM yes in /etc/ssh/sshd_config")


def _describe_pending_changes(node: Node) -> str:
    path = software.find_program(node, pam_module())
    parts = [software.describe_pending_install(node, pam_module())]
    if not (path and read_text(node.paths.under_root(CONF)) == _expected_text(node, path)):
        parts.append(f"the kit's lines into {CONF}")
    return "; ".join(part for part in parts if part)


def _undo_pam_slurm_adopt(node: Node) -> str:
    text = read_text(node.paths.under_root(CONF))
    if text is not None:
        write_if_different(node.paths.under_root(CONF), without_kit_block(text))
    return "ssh is open to all users again"


STEP = OptionalStep(
    "pam_slurm_adopt", _apply_pam_slurm_adopt, _describe_pending_changes, _undo_pam_slurm_adopt, roles=(Role.COMPUTE,)
)
