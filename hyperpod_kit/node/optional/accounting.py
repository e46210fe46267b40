"""Slurm's accounting as two steps: a database with slurmdbd before slurmctld is pointed at it, and then what slurmdbd
is to know, before slurmctld lets the first job in.

    accounting-database   database.py, slurmdbd.py     before slurm-hooks, which writes accounting_lines.py
    accounting            associations.py, copies.py   after it

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.optional_steps import Accounting
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.optional import associations, copies, database, slurmdbd, software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.slurm import accounting_lines
from hyperpod_kit.node.slurm.controller import read_slurm_conf
from hyperpod_kit.node.step import StepOutcome


def _configuration(node: Node) -> Accounting:
    accounting = node.config.steps.accounting
    assert accounting is not None, "the step is on"
    return accounting


def _ensure_database_and_slurmdbd(node: Node) -> StepOutcome:
    accounting = _configuration(node)
    accounting_lines.accounting_settings(
        node, read_slurm_conf(node)
    )  # before anything is installed: somebody else's stays
    done = []
    if accounting.database is None:
        done += [software.ensure_installed(node, database.MARIADB), database.ensure_mariadb_and_restore_if_new(node)]
    else:
        database.disable_mariadb_if_configured_by_kit(node)
    done.append(software.ensure_installed(node, slurmdbd.SLURMDBD))
    program = software.find_program(node, slurmdbd.SLURMDBD)
    if program is None:
        raise NodeError(f"{slurmdbd.SLURMDBD.programs[0]} is not there")
    if slurmdbd.ensure_slurmdbd(node, accounting, program):
        done.append("started slurmdbd")
    summary = "; ".join(part for part in done if part)
    return StepOutcome(bool(summary), summary)


def _describe_pending_database_and_slurmdbd(node: Node) -> str:
    accounting = _configuration(node)
    parts = []
    if accounting.database is None:
        parts = [software.describe_pending_install(node, database.MARIADB), database.describe_pending_changes(node)]
    parts += [
        software.describe_pending_install(node, slurmdbd.SLURMDBD),
        slurmdbd.describe_pending_changes(node, accounting),
    ]
    return "; ".join(part for part in parts if part)


def _stop_database_and_slurmdbd(node: Node) -> str:
    slurmdbd.stop_slurmdbd_and_delete_files(node)
    database.disable_mariadb_if_configured_by_kit(node)
    return "slurmdbd and its MariaDB rest; what is in the database stays"


def _ensure_associations_and_copy_database(node: Node) -> StepOutcome:
    accounting = _configuration(node)
    summary = associations.ensure_associations(node, accounting)
    if summary and accounting.database is None and copies.shared_database_copy_path(node):
        summary = f"{summary}; {copies.dump_accounting_database_to_shared_mount(node)}"
    return StepOutcome(bool(summary), summary)


def _describe_pending_associations(node: Node) -> str:
    return associations.describe_pending_changes(node, _configuration(node))


def _delete_associations_stamp(node: Node) -> str:
    associations.delete_stamp(node)
    return ""


DATABASE_STEP = OptionalStep(
    "accounting",
    _ensure_database_and_slurmdbd,
    _describe_pending_database_and_slurmdbd,
    _stop_database_and_slurmdbd,
    stage="database",
    # Without it slurmctld would not start: it is told of slurmdbd next.
    required=True,
    after_success=True,
    roles=(Role.CONTROLLER,),
)
STEP = OptionalStep(
    "accounting",
    _ensure_associations_and_copy_database,
    _describe_pending_associations,
    _delete_associations_stamp,
    required=True,
    after_success=True,
    roles=(Role.CONTROLLER,),
)
