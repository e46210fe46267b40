"""Slurm's accounting as two steps: a database with slurmdbd before slurmctld is pointed at it, and then what slurmdbd
is to know, before slurmctld lets the first job in.

    accounting-database   here, and slurmdbd.py       before slurm-hooks, which writes accounting_lines.py
    accounting            associations.py, copies.py   after it

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.optional_steps import Accounting
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.machine import deferred_actions, systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import associations, copies, slurmdbd, software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.node.slurm import accounting_lines, cluster_id
from hyperpod_kit.node.slurm.controller import read_slurm_conf, slurm_user
from hyperpod_kit.untrusted import by_descriptor


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
        done += [software.ensure_installed(node, MARIADB), ensure_mariadb_and_restore_if_new(node)]
    else:
        disable_mariadb_if_configured_by_kit(node)
    done.append(software.ensure_installed(node, slurmdbd.SLURMDBD))
    program = software.find_program(node, slurmdbd.SLURMDBD)
    if program is None:
        raise NodeError(f"{slurmdbd.SLURMDBD.programs[0]} is not installed")
    if slurmdbd.ensure_slurmdbd(node, accounting, program):
        done.append("started slurmdbd")
    summary = "; ".join(part for part in done if part)
    return StepOutcome(bool(summary), summary)


def _describe_pending_database_and_slurmdbd(node: Node) -> str:
    accounting = _configuration(node)
    parts = []
    if accounting.database is None:
        parts = [software.describe_pending_install(node, MARIADB), describe_pending_changes(node)]
    parts += [
        software.describe_pending_install(node, slurmdbd.SLURMDBD),
        slurmdbd.describe_pending_changes(node, accounting),
    ]
    return "; ".join(part for part in parts if part)


def _stop_database_and_slurmdbd(node: Node) -> str:
    slurmdbd.stop_slurmdbd_and_delete_files(node)
    disable_mariadb_if_configured_by_kit(node)
    return "slurmdbd and its MariaDB are stopped; the database is kept"


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


# MariaDB on the controller for slurmdbd, and where its contents come from on a machine that has none yet.

MARIADB = Software(("/usr/sbin/mariadbd", "/usr/sbin/mysqld"), ("mariadb",))
UNIT = "mariadb.service"
NAME = "slurm_acct_db"
RESTORING = "accounting-restore"
"""Noted from before the first line of a copy is read until after the last one."""

CONF_PATH = "/etc/mysql/mariadb.conf.d/90-hyperpod-kit.cnf"
CONF = """\
# Written by hyperpod-kit: what Slurm's accounting page asks of MariaDB. slurmdbd comes through the socket.
[mariadbd]
skip-networking
innodb_buffer_pool_size=512M
innodb_log_file_size=64M
innodb_lock_wait_timeout=900
max_allowed_packet=16M
"""
LOAD = 'set -o pipefail; gzip --decompress --stdout "$1" | mariadb "$2"'
LOADS_WITHIN = 600.0


def describe_pending_changes(node: Node) -> str:
    """Return what `ensure_mariadb_and_restore_if_new` would do, in words; "" for nothing."""
    parts = []
    if read_text(node.paths.under_root(CONF_PATH)) != CONF:
        parts.append(f"write {CONF_PATH}")
    if not (systemd.is_enabled(node, UNIT) and systemd.is_active(node, UNIT)):
        parts.append(f"enable and start {UNIT}")
    return "; ".join(part for part in parts if part)


def ensure_mariadb_and_restore_if_new(node: Node) -> str:
    """Configure and start MariaDB, make a database that SlurmUser may work with, filled from the last copy
    where it is new; return what was done, in words.

    Raises NodeError.
    """
    conf = node.paths.under_root(CONF_PATH)
    done = []
    if read_text(conf) != CONF:
        # As slurmdbd: stopped before, so that whoever is killed in between leaves something to start.
        if systemd.is_active(node, UNIT):
            node.runner.run(["systemctl", "stop", UNIT], timeout=120)
        write_if_different(conf, CONF)
    systemd.enable(node, UNIT)
    try:
        if systemd.start(node, UNIT, timeout=180):
            done.append("started MariaDB")
    except RunError as err:
        raise NodeError(
            f"MariaDB does not start: {systemd.last_log_line(node, UNIT) or err.message}", hint="journalctl -u mariadb"
        ) from err
    user = slurm_user(read_slurm_conf(node))
    if deferred_actions.is_recorded(node, RESTORING):
        _run_sql(node, f"DROP DATABASE IF EXISTS `{NAME}`")
    if not _run_sql(node, f"SHOW TABLES FROM `{NAME}`", check=False):
        done += _create_database_from_last_copy(node)
    _run_sql(
        node,
        f"CREATE USER IF NOT EXISTS '{user}'@'localhost' IDENTIFIED VIA unix_socket; "
        f"GRANT ALL ON `{NAME}`.* TO '{user}'@'localhost'",
    )
    return "; ".join(done)


def disable_mariadb_if_configured_by_kit(node: Node) -> None:
    """Stop MariaDB and disable it at boot, unless it is somebody else's, and delete its configuration of the
    kit's; what is in it stays."""
    if read_text(node.paths.under_root(CONF_PATH)) is None:
        return  # somebody else's
    node.runner.run(["systemctl", "disable", "--now", "--quiet", UNIT], timeout=180, check=False)
    by_descriptor.unlink(node.paths.under_root(CONF_PATH))


def _create_database_from_last_copy(node: Node) -> List[str]:
    deferred_actions.record_action(node, RESTORING)
    cluster_id.record_new_database(node)
    _run_sql(node, f"CREATE DATABASE IF NOT EXISTS `{NAME}`")
    copy = copies.fetch_accounting_database_copy(node)
    if copy:
        argv = ["bash", "-c", LOAD, "bash", copy, NAME]
        try:
            node.runner.run(argv, timeout=LOADS_WITHIN)
        except RunError as err:
            raise NodeError(
                f"the copy of Slurm's accounting at {copies.shared_database_copy_path(node)} cannot be read back: "
                f"{err.stderr.strip()}",
                hint="move it away to begin with an empty database",
            ) from err
        # What ended after the copy was made would be running for ever: slurmctld is asked, once it answers.
        deferred_actions.record_action(node, associations.RUNAWAYS)
    deferred_actions.delete_action_record(node, RESTORING)
    if copy:
        return ["created its database from the last copy"]
    return ["created its database, empty"]


def _run_sql(node: Node, statement: str, *, check: bool = True) -> str:
    """Run the statement as root by MariaDB's socket, and return its output. Raises NodeError."""
    try:
        return node.runner.run(
            ["mariadb", "--batch", "--skip-column-names", "--execute", statement], timeout=60, check=check
        ).stdout.strip()
    except RunError as err:
        raise NodeError(f"MariaDB: {err.stderr.strip() or err.message}", hint="journalctl -u mariadb") from err
