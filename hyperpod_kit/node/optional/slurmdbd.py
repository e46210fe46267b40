"""slurmdbd on the controller: its file, with the password where only it can read it, and its unit.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from typing import Dict, Optional, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.optional_steps import Accounting
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.timing import wait_for
from hyperpod_kit.node.optional import password
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.node.setup.users import getent_entry
from hyperpod_kit.node.slurm import cluster_id
from hyperpod_kit.node.slurm.accounting_lines import PORT
from hyperpod_kit.node.slurm.controller import read_slurm_conf, slurm_user
from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor

SLURMDBD = Software(("/opt/slurm/sbin/slurmdbd", "/usr/sbin/slurmdbd"), ("slurmdbd",))
UNIT = "slurmdbd.service"
STARTS_WITHIN = 120.0
"""Seconds until it answers; it makes its tables when it starts for the first time."""

CONF = """\
# Written by hyperpod-kit from the bundle's configuration: change that, not this file.
AuthType=auth/munge
DbdHost={host}
DbdAddr={address}
DbdPort={port}
SlurmUser={user}
PidFile=/run/slurmdbd.pid
DebugLevel=info
StorageType=accounting_storage/mysql
"""

UNIT_TEXT = """\
# Written by hyperpod-kit: this system has Slurm's program and no unit for it.
[Unit]
Description=Slurm accounting daemon
After=network-online.target munge.service
Wants=network-online.target
ConditionPathExists={conf}

[Service]
Type=simple
ExecStart={program} -D -s
ExecReload=/bin/kill -HUP $MAINPID
LimitNOFILE=65536
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""

DROP_IN = """\
# Written by hyperpod-kit.
[Unit]
After=mariadb.service
StartLimitIntervalSec=0

[Service]
# Its database may come later than it does, at boot and after a failure.
Restart=on-failure
RestartSec=5
"""


def expected_conf(node: Node, accounting: Accounting) -> str:
    """Render slurmdbd.conf. Raises NodeError when the secret is not there."""
    user = slurm_user(read_slurm_conf(node))
    lines = CONF.format(host=node.facts.node, address=node.facts.address, port=PORT, user=user)
    database = accounting.database
    if database is None:
        # Through MariaDB's socket, which knows the user by the kernel's word: there is no password.
        return f"{lines}StorageHost=localhost\nStorageUser={user}\nStorageLoc=slurm_acct_db\n"
    secret = password.read_password(node, database.secret_arn, forbidden_characters='"#')
    return (
        f"{lines}StorageHost={database.host}\nStoragePort={database.port}\nStorageUser={database.user}\n"
        f'StorageLoc={database.name}\nStoragePass="{secret}"\n'
    )


def describe_pending_changes(node: Node, accounting: Accounting) -> str:
    """Return what `ensure_slurmdbd` would do, in words; "" for nothing."""
    try:
        differs = read_text(node.paths.slurmdbd_conf) != expected_conf(node, accounting)
    except NodeError:  # without its secret, or slurm.conf, yet
        differs = True
    parts = []
    if differs:
        parts.append(f"write {node.paths.slurmdbd_conf}")
    if not (systemd.is_enabled(node, UNIT) and systemd.is_active(node, UNIT)):
        parts.append(f"enable and start {UNIT}")
    elif differs:
        parts.append("restart slurmdbd")
    return "; ".join(part for part in parts if part)


def ensure_slurmdbd(node: Node, accounting: Accounting, program: str) -> bool:
    """Write slurmdbd's configuration and units, have `program` run with them, and wait until it answers; True
    when anything changed. Raises NodeError when it does not answer."""
    text, path = expected_conf(node, accounting), node.paths.slurmdbd_conf
    units = _expected_unit_files(node, program)
    changed = [unit for unit, unit_text in units.items() if write_if_different(node.paths.unit(unit), unit_text)]
    if changed or systemd.needs_daemon_reload(node, [UNIT]):
        systemd.daemon_reload(node)
    running = systemd.is_active(node, UNIT)
    earlier_text = read_text(path)
    if earlier_text != text:
        if database_of(earlier_text or "") != database_of(text):
            cluster_id.record_new_database(node)
        # Stopped before and not restarted after: who is killed in between finds it resting, and starts it.
        if running:
            node.runner.run(["systemctl", "stop", UNIT], timeout=120)
            running = False
        account = getent_entry(node, "passwd", slurm_user(read_slurm_conf(node)))
        if account is None:
            raise NodeError("SlurmUser of slurm.conf does not exist on this node")
        atomic_file.write_atomically(path, text.encode(), 0o600, owner=(int(account[2]), int(account[3])))
    systemd.enable(node, UNIT)
    try:
        systemd.start(node, UNIT, timeout=90)
    except RunError as err:
        raise NodeError(f"slurmdbd does not start: {systemd.last_log_line(node, UNIT) or err.message}") from err
    _await_response(node)
    return not running or bool(changed)


def database_of(slurmdbd_conf_text: str) -> Tuple[str, ...]:
    """Return where the database lies, without the user and the password."""
    settings = parse_slurm_conf_settings(slurmdbd_conf_text)
    return tuple(settings.get(key, "") for key in ("storagehost", "storageport", "storageloc"))


def stop_slurmdbd_and_delete_files(node: Node) -> None:
    """Stop slurmdbd, disable it at boot, and delete the kit's files; its database stays."""
    with contextlib.suppress(RunError):
        node.runner.run(["systemctl", "disable", "--now", "--quiet", UNIT], timeout=120)
    for path in (node.paths.slurmdbd_conf, node.paths.unit(f"{UNIT}.d/hyperpod-kit.conf"), node.paths.unit(UNIT)):
        if "hyperpod-kit" in (read_text(path) or ""):
            by_descriptor.unlink(path)
    systemd.daemon_reload(node)


def _expected_unit_files(node: Node, program: str) -> Dict[str, str]:
    units = {f"{UNIT}.d/hyperpod-kit.conf": DROP_IN}
    has_unit = node.runner.run(["systemctl", "cat", UNIT], timeout=20, check=False).returncode == 0
    if not has_unit or "Written by hyperpod-kit" in (read_text(node.paths.unit(UNIT)) or ""):
        units[UNIT] = UNIT_TEXT.format(conf=node.paths.slurmdbd_conf, program=program)
    return units


def _await_response(node: Node) -> None:
    import socket

    def check_response() -> Optional[bool]:
        if not systemd.is_active(node, UNIT):
            return None
        try:
            with socket.create_connection((node.facts.address, PORT), timeout=5):
                return True
        except OSError:
            return None

    if wait_for(check_response, seconds=STARTS_WITHIN, clock=node.clock, first=0.2, longest=2.0) is None:
        raise NodeError(
            f"slurmdbd does not answer after {STARTS_WITHIN:g} s: {systemd.last_log_line(node, UNIT)}",
            hint="journalctl -u slurmdbd",
        )
