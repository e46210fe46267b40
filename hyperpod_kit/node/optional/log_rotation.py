"""Logs that do not fill the disk: Slurm's, and those of this toolkit and its scripts.

logrotate does it, from a file and with a state of our own, each time that upkeep.py looks: by the size of a log and
not by the day, as a log that grows has filled a disk before the day is over. What the system's own logrotate does with
other files is left alone.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.optional_steps import LogRotation
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.untrusted import by_descriptor

LOGROTATE = Software(("/usr/sbin/logrotate",), ("logrotate",))
CONF = "/etc/hyperpod-kit/logrotate.conf"
STATE = "/var/lib/hyperpod-kit/logrotate.state"

TEXT = """\
# Written by hyperpod-kit from the bundle's configuration: change that, not this file.
su root root
missingok
notifempty
nomail
compress
size {size}
rotate {keep}

# Whoever writes these keeps them open, and CloudWatch's agent reads on in the same file.
/var/log/provision/*.log {{
    copytruncate
}}

/var/log/slurm/*.log /var/log/slurmctld.log /var/log/slurmd.log /var/log/slurmdbd.log {{
    create
    delaycompress
    sharedscripts
    postrotate
        for daemon in slurmctld slurmd slurmdbd; do
            systemctl kill --kill-who=main --signal=USR2 "$daemon.service" 2>/dev/null || true
        done
    endscript
}}
"""


def _logrotate_conf_text(configuration: LogRotation) -> str:
    return TEXT.format(size=configuration.size, keep=configuration.keep)


def _configuration(node: Node) -> LogRotation:
    configuration = node.config.steps.log_rotation
    assert configuration is not None, "the step is on"
    return configuration


def _apply_log_rotation(node: Node) -> StepOutcome:
    installed = software.ensure_installed(node, LOGROTATE)
    changed = write_if_different(node.paths.under_root(CONF), _logrotate_conf_text(_configuration(node)))
    return StepOutcome(changed or bool(installed), installed)


def _describe_pending_changes(node: Node) -> str:
    differs = read_text(node.paths.under_root(CONF)) != _logrotate_conf_text(_configuration(node))
    parts = [software.describe_pending_install(node, LOGROTATE)]
    if differs:
        parts.append(f"write {CONF}")
    return "; ".join(part for part in parts if part)


def _undo_log_rotation(node: Node) -> str:
    for path in (CONF, STATE):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(node.paths.under_root(path))
    return "logs are no longer rotated by the kit"


def rotate_logs(node: Node) -> None:
    """Run logrotate, which puts aside each log that has reached its size. Raises NodeError."""
    try:
        node.runner.run(
            [LOGROTATE.programs[0], "--state", node.paths.under_root(STATE), node.paths.under_root(CONF)], timeout=300
        )
    except RunError as err:
        output = err.stderr.strip().splitlines()
        reason = err.message
        if output:
            reason = output[-1]
        raise NodeError(f"logrotate: {reason}", hint=f"logrotate --debug {CONF}") from err


STEP = OptionalStep("log_rotation", _apply_log_rotation, _describe_pending_changes, _undo_log_rotation)
