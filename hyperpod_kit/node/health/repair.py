"""What to do about a mount that does not serve, and doing it. Deciding is pure; a living mount is never torn away.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import replace

from hyperpod_kit.errors import HyperpodKitError, RunError
from hyperpod_kit.model.mounts import Mount, MountStatus
from hyperpod_kit.model.units import carrier_unit
from hyperpod_kit.node import systemd
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.health import record as health_record
from hyperpod_kit.node.health.look import check
from hyperpod_kit.node.health.record import HealthRecord
from hyperpod_kit.node.locks import held
from hyperpod_kit.node.mounts.ensure import await_healthy, clear_dead
from hyperpod_kit.node.mounts.kinds import kind_of

LONGEST_PAUSE = 300.0
"""Seconds between repairs of a mount that will not come back: slower and slower, but never given up."""

STRIKES = 2
"""A hung daemon is killed, and a unit that claims to run restarted, only when two checks in a row say so."""


def decide(mount: Mount, status: MountStatus, record: HealthRecord, interval: float) -> str:
    """One of `none`, `wait`, `restart` and `kill`. `record` already counts this check."""
    if status.healthy:
        return "none"
    if status.state == "hung":
        action = "kill" if kind_of(mount).restart_when_hung else "none"
    elif status.state in ("absent", "stale"):
        action = "restart"
    else:
        return "none"  # something lives there, or it is the server's business: a person must look
    if action == "none":
        return "none"
    if action == "kill" and record.failures < STRIKES:
        return "wait"
    pause = min(interval * 2.0 ** (record.repairs - 1), LONGEST_PAUSE) if record.repairs else 0.0
    # A clock that was set back must not stop repairs for good.
    since = status.checked_at - record.repaired_at
    return "wait" if 0 <= since < pause else action


def carry_out(node: Node, mount: Mount, action: str) -> str:
    """Do `restart` or `kill`; returns what happened, in words, also when it failed."""
    unit = carrier_unit(mount)
    try:
        if action == "kill":
            node.runner.run(["systemctl", "kill", "--signal=KILL", unit], timeout=30)
        clear_dead(node, mount)
        # The daemon's own supervision may have been faster than this check.
        if check(node, mount).healthy:
            return f"{action}: {unit} was back already"
        # A unit that is just starting must not be thrown back; one that claims to run must be.
        verb = "restart" if systemd.is_active(node, unit) else "start"
        node.runner.run(["systemctl", verb, unit], timeout=200)
        await_healthy(node, mount, seconds=20)
        return f"{action}: {unit} serves again"
    except RunError as err:
        words = systemd.last_words(node, unit)
        return f"{action} failed: {words or err.message}"
    except HyperpodKitError as err:
        return f"{action} failed: {err.message}"


def tend(node: Node, mount: Mount) -> HealthRecord:
    """One tick of the timer: check, count, repair if due, check again, keep the record."""
    with held(node, f"{mount.name}.repair", seconds=5) as mine:
        status = check(node, mount)
        if not mine:
            return health_record.load(node, mount.name).after(status, node.config.health.give_up_after)
        record = health_record.load(node, mount.name).after(status, node.config.health.give_up_after)
        action = decide(mount, status, record, node.config.health.interval)
        if action in ("restart", "kill"):
            words = carry_out(node, mount, action)
            record = replace(record, repairs=record.repairs + 1, repaired_at=status.checked_at, last_repair=words)
            again = check(node, mount)
            record = record.after(again, node.config.health.give_up_after) if again.healthy else record
        health_record.save(node, mount.name, record)
        return record
