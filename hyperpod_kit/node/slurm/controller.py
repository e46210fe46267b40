"""The node that runs slurmctld: our hooks in its configuration, then the daemons, in this order.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node import owed, systemd
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text, write_if_different
from hyperpod_kit.node.paths import SPANK_PLUGIN
from hyperpod_kit.node.slurm.hooks import merge_hooks, with_block
from hyperpod_kit.node.timing import wait_for

ANSWERS_WITHIN = 120.0
UNITS = ("munge.service", "slurmctld.service")


RECONFIGURE = "slurm-reconfigure"


def wanted(node: Node) -> Tuple[Dict[str, str], List[str]]:
    """(path -> text of each file of Slurm's with our block in it, notes). Raises NodeError.

    That is when the platform has not written slurm.conf.
    """
    conf = read_text(node.paths.slurm_conf)
    if conf is None:
        raise NodeError(f"{node.paths.slurm_conf}: the platform has not written it on this controller",
                        hint="check provisioning_parameters.json in the bundle, or SlurmConfig of the request")
    hooks = read_text(f"{node.paths.bundle}/slurm/hooks.conf")
    if hooks is None:
        raise NodeError("slurm/hooks.conf is not in the bundle", hint="hyperpod-kit upload with the same version")
    text, notes = merge_hooks(conf, hooks)
    plugstack = with_block(read_text(node.paths.plugstack_conf) or "", [f"optional {SPANK_PLUGIN}"])
    return {node.paths.slurm_conf: text, node.paths.plugstack_conf: plugstack}, notes


def hooks_pending(node: Node) -> str:
    """What `install_hooks` would do, in words."""
    differing = [path for path, text in wanted(node)[0].items() if read_text(path) != text]
    if differing:
        return f"our block into {', '.join(differing)}"
    return "scontrol reconfigure" if owed.is_owed(node, RECONFIGURE) else ""


def install_hooks(node: Node) -> Tuple[bool, List[str]]:
    """Put our block into slurm.conf and plugstack.conf; (changed, notes). A running slurmctld reads them anew.

    Raises NodeError when the platform has not written slurm.conf.
    """
    files, notes = wanted(node)
    differing = [path for path, text in files.items() if read_text(path) != text]
    if differing:
        owed.note(node, RECONFIGURE)
        for path in differing:
            write_if_different(path, files[path])
    if not owed.is_owed(node, RECONFIGURE):
        return False, notes
    if systemd.is_active(node, "slurmctld.service"):
        node.runner.run([node.paths.scontrol, "reconfigure"], timeout=60)
    owed.settle(node, RECONFIGURE)
    return True, notes


def daemons_pending(node: Node) -> str:
    """What `start_controller` would do, in words."""
    resting = [unit for unit in UNITS if not (systemd.is_enabled(node, unit) and systemd.is_active(node, unit))]
    return f"enable and start {', '.join(resting)}" if resting else ""


def start_controller(node: Node) -> bool:
    """Start munge and slurmctld, now and at boot, and wait until slurmctld answers. Raises NodeError."""
    changed = systemd.enable(node, *UNITS)
    for unit in UNITS:
        changed = systemd.start(node, unit, timeout=90) or changed

    def answers() -> Optional[bool]:
        try:
            said = node.runner.run([node.paths.scontrol, "ping"], timeout=20, check=False).stdout
        except RunError:
            return None
        return True if " is UP" in said else None

    if wait_for(answers, seconds=ANSWERS_WITHIN, clock=node.clock, first=0.2, longest=2.0) is None:
        raise NodeError(f"slurmctld does not answer after {ANSWERS_WITHIN:g} s: "
                        f"{systemd.last_words(node, 'slurmctld.service')}", hint="journalctl -u slurmctld")
    return changed
