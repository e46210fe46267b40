"""Slurm without the kit: our lines out of its configuration, and slurmctld's state back at the platform's own place.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import pwd
from typing import List

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.slurm import controller, state
from hyperpod_kit.node.slurm.hooks import kit_block_lines, parse_slurm_conf_settings, without_kit_block
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.untrusted import by_descriptor

COPIED_WITHIN = 300.0
"""Seconds that a copy of slurmctld's state may take: a directory of small files."""


def files_with_kit_lines(node: Node) -> List[str]:
    """Return the files of Slurm's configuration that have our block."""
    paths = (node.paths.slurm_conf, node.paths.plugstack_conf)
    return [path for path in paths if kit_block_lines(read_text(path) or "")]


def describe_pending_changes(node: Node) -> str:
    """Return what `remove_kit_lines_and_move_state_home` would do, in words; "" for nothing. Raises NodeError."""
    parts = []
    location = _shared_location(node)
    if location:
        parts.append(f"Slurm's state from {location} back to {_home_of_state(node)}")
    files = files_with_kit_lines(node)
    if files:
        parts.append(f"the kit's lines out of {', '.join(files)}")
    return "; ".join(parts)


def remove_kit_lines_and_move_state_home(node: Node) -> None:
    """Take our lines out of Slurm's configuration; a controller reads it anew, and has its state on its own disk.
    Raises NodeError, RunError. The guard of Slurm must not run."""
    files = files_with_kit_lines(node)
    location = _shared_location(node)
    if location:
        home = _home_of_state(node)
        node.runner.run(["systemctl", "stop", controller.UNITS[1]], timeout=120)
        _copy_state(node, location, home)
    for path in files:
        write_if_different(path, without_kit_block(read_text(path) or ""))
    if not files or node.facts.role != Role.CONTROLLER:
        return
    by_descriptor.unlink(node.paths.unit(f"{controller.UNITS[1]}.d/hyperpod-kit.conf"), missing_ok=True)
    systemd.daemon_reload(node)
    systemd.start(node, controller.UNITS[1], timeout=controller.STARTS_WITHIN)
    controller.await_slurmctld_response(node)
    # After a start too: nodes that run already have a copy of the configuration and are told only by this.
    node.runner.run([node.paths.scontrol, "reconfigure"], timeout=60)
    controller.await_slurmctld_response(node)


def _shared_location(node: Node) -> str:
    """Return where the kit has put the state of this controller's slurmctld, "" for nowhere."""
    if node.facts.role != Role.CONTROLLER:
        return ""
    return controller.existing_kit_state_location(read_text(node.paths.slurm_conf) or "")


def _home_of_state(node: Node) -> str:
    """Return StateSaveLocation of slurm.conf without our lines. Raises NodeError where it cannot be this machine's."""
    conf = without_kit_block(read_text(node.paths.slurm_conf) or "")
    home = parse_slurm_conf_settings(conf).get("statesavelocation", "")
    if node.config.controllers > 1:
        raise NodeError(
            "several controllers share Slurm's state on a mount of the kit, and none has its own directory for it",
            hint="move StateSaveLocation to storage that all of them mount without the kit; then repeat the command",
        )
    if home.count("/") < 2 or "/./" in home or "/../" in f"{home}/":
        raise NodeError(
            f"slurm.conf names no StateSaveLocation except the kit's ({home or 'none'}): the state has no previous "
            "place",
            hint="write StateSaveLocation=/var/spool/slurmctld into slurm.conf, above the kit's lines; then repeat "
            "the command",
        )
    return home


def _copy_state(node: Node, location: str, home: str) -> None:
    """Put a copy of the state in the place of what is at `home`, mostly a link to it; slurmctld does not run."""
    path = node.paths.under_root(home)
    partial = f"{path}.hyperpod-kit"
    if os.path.islink(partial):
        by_descriptor.unlink(partial)
    source = node.paths.under_root(location)
    user = pwd.getpwnam(controller.slurm_user(read_text(node.paths.slurm_conf) or ""))
    call_in_child(f"Slurm's state in {location}", lambda: state.copy_state(source, partial, user), COPIED_WITHIN)
    if os.path.islink(path):
        by_descriptor.unlink(path)
    elif os.path.lexists(path):
        by_descriptor.rename(path, state.unused_set_aside_path(path, node.clock.wall()))
    by_descriptor.rename(partial, path)
