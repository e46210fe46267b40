"""A daemon that cannot start (its bucket is unreachable) is tried for ever, but not every second.

systemd before 254 has no growing RestartSec; so the pause is taken when a start has failed, in ExecStopPost. A daemon
that served and died is restarted after RestartSec alone.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, try_write_volatile_json
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted import by_descriptor

FREE = 3
"""Starts that may fail before any pause: at a boot, names and credentials come late."""

PAUSES = BackOff(1.0, 10.0)
"""Seconds; shorter than the TimeoutStopSec of the unit."""


def count_daemon_start(node: Node, mount: Mount) -> None:
    """Count one more start of the daemon; `delete_daemon_start_count` deletes the count."""
    try_write_volatile_json(
        node.paths.daemon_start_count(mount.name), {"starts": _read_daemon_start_count(node, mount) + 1}
    )


def delete_daemon_start_count(node: Node, mount: Mount) -> None:
    """Delete the count of starts, once a start has succeeded."""
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.unlink(node.paths.daemon_start_count(mount.name))


def seconds_before_next_daemon_start(node: Node, mount: Mount) -> float:
    """Seconds to wait before the next start: 0 after one that succeeded, growing from the fourth failure on."""
    return PAUSES.pause_seconds(_read_daemon_start_count(node, mount) - FREE)


def _read_daemon_start_count(node: Node, mount: Mount) -> int:
    raw = read_json(node.paths.daemon_start_count(mount.name))
    starts = 0
    if isinstance(raw, dict):
        starts = raw.get("starts", 0)
    return starts
