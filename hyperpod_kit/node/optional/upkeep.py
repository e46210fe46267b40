"""What optional steps want done again and again: the timer's run, once a minute, on nodes that have such a step.

Each part is done whatever became of the others, and what fails is said and tried again by the next run.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import sys
from typing import Callable, Dict, List

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.machine import deferred_actions, systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.locks import hold_lock
from hyperpod_kit.node.optional import (
    associations,
    copies,
    enroot,
    host_keys,
    log_rotation,
    node_exporter,
    podman,
    ssh_between_nodes,
)


def run_upkeep_parts_and_list_failures(node: Node) -> List[str]:
    """Run the recurring part of each optional step, unless another run is at it; return what failed, in words."""
    failed = []
    with hold_lock(node, "upkeep", seconds=0.0) as locked:
        if not locked:
            return []
        for name in node.config.steps.upkeep_steps_on(node.facts.role):
            try:
                PARTS[name](node)
            except (HyperpodKitError, OSError) as err:
                failed.append(f"{name}: {getattr(err, 'message', err)}")
    return failed


def run_upkeep_command() -> int:
    """Run the recurring parts of the optional steps. Exit code 0, or 1 when something could not be done."""
    from hyperpod_kit.node.machine.context import open_node

    failed = run_upkeep_parts_and_list_failures(open_node())
    for line in failed:
        print(f"error: {line}", file=sys.stderr)
    if failed:
        return 1
    return 0


def _update_host_keys(node: Node) -> None:
    mount = ssh_between_nodes.host_keys_mount(node)
    if node.facts.role == Role.CONTROLLER:
        host_keys.join_published_keys_into_one_file(node, mount)
    host_keys.update_known_hosts_from_joined_keys(node, mount)


def _end_runaways_and_copy_accounting(node: Node) -> None:
    if deferred_actions.is_recorded(node, associations.RUNAWAYS) and systemd.is_active(node, "slurmctld.service"):
        associations.end_runaway_jobs(node)
        deferred_actions.delete_action_record(node, associations.RUNAWAYS)
    if copies.is_database_copy_due_on_this_machine(node):
        copies.dump_accounting_database_to_shared_mount(node)


PARTS: Dict[str, Callable[[Node], object]] = {
    "log_rotation": log_rotation.rotate_logs,
    "ssh_between_nodes": _update_host_keys,
    "node_exporter": node_exporter.write_slurm_metrics,
    "accounting": _end_runaways_and_copy_accounting,
    "podman": podman.ensure_directory,
    "enroot": enroot.ensure_directories,
}
"""Key of an optional step -> what is to be done for it."""
