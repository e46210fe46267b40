"""Copies of Slurm's accounting where they outlive the controller: beside slurmctld's state, on the mount that has it.

    <mount>/.hyperpod-kit/<cluster>/accounting/slurm_acct_db.sql.gz     root's, 0600

What MariaDB has on its own disk goes with the machine. The next controller begins with the last copy, which is at most
EVERY seconds older than the end of the one before.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Optional

from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import remove_partials_of_dead_writers, write_if_different
from hyperpod_kit.node.slurm import state
from hyperpod_kit.system import atomic_file
from hyperpod_kit.system.bounded_child import call_in_child
from hyperpod_kit.untrusted import by_descriptor

EVERY = 600.0
DUMP = (
    "set -o pipefail; umask 077; "
    'mariadb-dump --single-transaction --quick "$1" | gzip -1 >"$2.partial" && mv "$2.partial" "$2"'
)
DUMPS_WITHIN, SECONDS = 900.0, 300.0
NAME = "slurm_acct_db"


def shared_database_copy_path(node: Node) -> str:
    """Return the path of the copy on the shared mount, as a node names it; "" where there is no place that
    outlives this machine."""
    where = state.shared_state_location(node)
    if where:
        return f"{where.base}/accounting/{NAME}.sql.gz"
    return ""


def is_database_copy_due_on_this_machine(node: Node) -> bool:
    """Return whether the last copy is old, and this machine is the one whose accounting counts."""
    accounting = node.config.steps.accounting
    if accounting is None or accounting.database is not None or not shared_database_copy_path(node):
        return False
    try:
        age = node.clock.wall() - os.stat(node.paths.accounting_dump_saved_stamp).st_mtime
    except FileNotFoundError:
        age = EVERY
    # With its state on shared storage, slurmctld runs on the machine that has the lease, and on no other.
    return not 0 <= age < EVERY and systemd.is_active(node, "slurmctld.service")


def dump_accounting_database_to_shared_mount(node: Node) -> str:
    """Dump the database, and copy it to where it outlives this machine; return what was done, in words. Raises
    NodeError, RunError."""
    where = state.shared_state_location(node)
    if where is None:
        return ""
    local, target = node.paths.accounting_database_dump, node.paths.under_root(shared_database_copy_path(node))
    by_descriptor.make_directories(os.path.dirname(local), 0o700)
    node.runner.run(["bash", "-c", DUMP, "bash", NAME, local], timeout=DUMPS_WITHIN)

    def work() -> str:
        state.ensure_cluster_directory(node.paths.under_root(where.mount.path), node.paths.under_root(where.base))
        state.make_or_require_root_directory(os.path.dirname(target), 0o700)
        _copy_atomically(local, target)
        return target

    call_in_child(f"a copy of Slurm's accounting to {shared_database_copy_path(node)}", work, SECONDS)
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.accounting_dump_saved_stamp)
    write_if_different(node.paths.accounting_dump_saved_stamp, "")
    return f"copied Slurm's accounting to {shared_database_copy_path(node)}"


def fetch_accounting_database_copy(node: Node) -> Optional[str]:
    """Copy the last dump from the shared mount to this machine's own disk, and return its path; None when
    there is none. Raises NodeError."""
    where = state.shared_state_location(node)
    if where is None:
        return None
    local, source = node.paths.accounting_database_dump, node.paths.under_root(shared_database_copy_path(node))
    by_descriptor.make_directories(os.path.dirname(local), 0o700)

    def work() -> bool:
        if not os.path.exists(source):
            return False
        _copy_atomically(source, local)
        return True

    if call_in_child(f"the copy of Slurm's accounting at {shared_database_copy_path(node)}", work, SECONDS):
        return local
    return None


def _copy_atomically(source: str, target: str) -> None:
    """Copy the file, complete or not at all; first delete what a process that was killed has left."""
    remove_partials_of_dead_writers(os.path.dirname(target), os.path.basename(target))
    with open(source, "rb") as reading, atomic_file.open_for_atomic_replace(target, 0o600, durable=True) as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)
