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
from hyperpod_kit.node.slurm.controller import slurm_conf
from hyperpod_kit.node.step import StepOutcome


def _asked(node: Node) -> Accounting:
    asked = node.config.steps.accounting
    assert asked is not None, "the step is on"
    return asked


def _serve(node: Node) -> StepOutcome:
    asked = _asked(node)
    accounting_lines.ours(node, slurm_conf(node))  # before anything is installed: somebody else's stays
    done = []
    if asked.database is None:
        done += [software.ensure(node, database.MARIADB), database.settle(node)]
    else:
        database.remove(node)
    done.append(software.ensure(node, slurmdbd.SLURMDBD))
    program = software.found(node, slurmdbd.SLURMDBD)
    if program is None:
        raise NodeError(f"{slurmdbd.SLURMDBD.programs[0]} is not there")
    if slurmdbd.settle(node, asked, program):
        done.append("started slurmdbd")
    said = "; ".join(word for word in done if word)
    return StepOutcome(bool(said), said)


def _serving_pending(node: Node) -> str:
    asked = _asked(node)
    words = [software.pending(node, database.MARIADB), database.pending(node)] if asked.database is None else []
    words += [software.pending(node, slurmdbd.SLURMDBD), slurmdbd.pending(node, asked)]
    return "; ".join(word for word in words if word)


def _stop_serving(node: Node) -> str:
    slurmdbd.remove(node)
    database.remove(node)
    return "slurmdbd and its MariaDB rest; what is in the database stays"


def _know(node: Node) -> StepOutcome:
    asked = _asked(node)
    said = associations.settle(node, asked)
    if said and asked.database is None and copies.place(node):
        said = f"{said}; {copies.make(node)}"
    return StepOutcome(bool(said), said)


def _knowing_pending(node: Node) -> str:
    return associations.pending(node, _asked(node))


def _forget(node: Node) -> str:
    associations.forget(node)
    return ""


DATABASE_STEP = OptionalStep(
    "accounting",
    _serve,
    _serving_pending,
    _stop_serving,
    stage="database",
    # Without it slurmctld would not start: it is told of slurmdbd next.
    required=True,
    after_success=True,
    roles=(Role.CONTROLLER,),
)
STEP = OptionalStep(
    "accounting", _know, _knowing_pending, _forget, required=True, after_success=True, roles=(Role.CONTROLLER,)
)
