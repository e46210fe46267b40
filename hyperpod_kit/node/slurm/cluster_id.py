"""The id of the cluster, which slurmctld and the accounting database must have alike since Slurm 24.05.

slurmctld makes an id of its own when it first starts without accounting and keeps it in `clustername` in its state
directory; slurmdbd makes another one when the cluster registers for the first time. slurmctld does not start where they
differ (`CLUSTER ID MISMATCH`), and takes the database's where the file is not there: seen with 24.11.5 and 26.05.5,
whose jobs and nodes stayed as they were. HyperPod starts slurmctld before the kit sets accounting up, so they differ
then, and again whenever another database takes the place of the first.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os

from hyperpod_kit.node.machine import deferred_actions
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.untrusted import by_descriptor

DEFAULT_STATE = "/var/spool"
"""StateSaveLocation where slurm.conf has none."""

FILE = "clustername"
"""`<name>|<id>`; up to 23.11 the name alone."""

KEPT = f"{FILE}.before-accounting"

_NEW_DATABASE = "slurm-database-is-new"
_SECONDS = 60.0


def record_new_database(node: Node) -> None:
    """Note that slurmdbd is about to get another database: one in which the cluster may have another id."""
    deferred_actions.record_action(node, _NEW_DATABASE)


def is_database_new(node: Node) -> bool:
    """Return whether slurmctld has not been started with this database yet."""
    return deferred_actions.is_recorded(node, _NEW_DATABASE)


def delete_record_of_new_database(node: Node) -> None:
    """Note that slurmctld runs with this database."""
    deferred_actions.delete_action_record(node, _NEW_DATABASE)


def set_own_id_aside(node: Node, slurm_conf_text: str) -> str:
    """Have slurmctld take the id of the database at its next start; return a note, "" where it has no id of its own.

    slurmctld must not run. Raises NodeError.

    Args:
        slurm_conf_text: What slurmctld is started with.
    """
    settings = parse_slurm_conf_settings(slurm_conf_text)
    directory = node.paths.under_root(settings.get("statesavelocation", DEFAULT_STATE))
    cluster = settings.get("clustername", "")
    what = f"{directory}/{FILE}"
    number = str(call_in_child(what, lambda: rename_file_with_own_id(directory, cluster), _SECONDS))
    if not number:
        return ""
    return (
        f"slurmctld now uses the cluster id of the accounting database; its old id, {number}, is kept in "
        f"{directory}/{KEPT}"
    )


def rename_file_with_own_id(directory: str, cluster: str) -> str:
    """Return the id; "" where there is none, or the state is another cluster's, which slurmctld refuses by itself.

    Raises Untrusted, OSError.
    """
    path = os.path.join(directory, FILE)
    name, _, number = (read_text(path) or "").strip().partition("|")
    if not number or name.lower() != cluster.lower():
        return ""
    by_descriptor.rename(path, os.path.join(directory, KEPT))
    return number
