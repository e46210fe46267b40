"""The node that runs slurmctld: our hooks in its configuration, then the daemons, in this order.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.node import systemd
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text, write_if_different
from hyperpod_kit.node.paths import SPANK_PLUGIN
from hyperpod_kit.node.slurm.hooks import merge_hooks, with_block
from hyperpod_kit.node.timing import wait_for

ANSWERS_WITHIN = 120.0


def install_hooks(node: Node) -> Tuple[bool, List[str]]:
    """Put our block into slurm.conf and plugstack.conf; (changed, notes). A running slurmctld reads them anew.

    Raises NodeError when the platform has not written slurm.conf.
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
    changed = write_if_different(node.paths.slurm_conf, text)
    changed = write_if_different(node.paths.plugstack_conf, plugstack) or changed
    if changed and systemd.is_active(node, "slurmctld.service"):
        node.runner.run([node.paths.scontrol, "reconfigure"], timeout=60)
    return changed, notes


def start_controller(node: Node) -> bool:
    """Start munge and slurmctld, now and at boot, and wait until slurmctld answers. Raises NodeError."""
    changed = systemd.enable(node, "munge.service", "slurmctld.service")
    for unit in ("munge.service", "slurmctld.service"):
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
