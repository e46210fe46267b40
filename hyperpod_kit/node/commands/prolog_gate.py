"""The Prolog's question: may a job start on this node? Bounded, no Slurm command, no inherited descriptor.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import List

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.units import repair_unit
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.timing import poll_until
from hyperpod_kit.node.observe.check import check_mounts
from hyperpod_kit.node.packets import packet_rules
from hyperpod_kit.node.slurm import gate_refusal
from hyperpod_kit.node.slurm.spool import SPOOL_REASON, spool_failure

SECONDS = 30.0
"""The gate's own bound, of which the Prolog allows 40. A node must not be drained for a daemon that is back in two
seconds, so a mount that does not serve has as long as this to come back."""

LONGEST_LOOK = 5.0
"""Seconds that one look may take, whatever the timer's deadline is."""


def repair_or_record_failing_mounts(node: Node, user: str = "") -> List[MountStatus]:
    """Return the required mounts that keep a job of `user` from starting; empty when it may. Starts one repair
    of each that does not serve and waits for it; what still fails is recorded as the reason of Slurm's
    drain.

    The homes of others do not matter to a job; with "" every home does.
    """
    end = node.clock.monotonic() + SECONDS
    bad = _mounts_unusable_for_job_now(node, user, end)
    if not bad:
        return []
    # Through systemd and without waiting: nothing that is started here may live in slurmd's process tree.
    units = [repair_unit(status.name) for status in bad]
    node.runner.run(["systemctl", "start", "--no-block", *units], timeout=5, check=False)
    # A look may last, so the wait ends early enough for one.
    remaining = end - LONGEST_LOOK - node.clock.monotonic()
    bad = poll_until(
        lambda: _mounts_unusable_for_job_now(node, user, end),
        lambda unhealthy: not unhealthy,
        seconds=max(0.0, remaining),
        clock=node.clock,
        first=0.5,
        longest=2.0,
    )
    if bad and node.config.health.drain:
        # Slurm drains this node with its own words, `Prolog error`: this is how we know that they are about us.
        gate_refusal.record_refusal(node, node.paths.gate_refusal_record, reason=refusal_text(bad))
    return bad


def restore_rules_or_reason(node: Node) -> str:
    """Why no job may start although the mounts serve: a home or the metadata service is open to every user, and the
    packet rules that close it cannot be set. "" when they hold, or nothing depends on them."""
    if os.geteuid() != 0:
        return ""
    rules = packet_rules.restore_rules(node)
    if rules.required and not rules.in_force:
        return f"hyperpod-kit: {rules.reason}"
    return ""


def record_spool_failure(node: Node) -> str:
    """Why no job may start although the mounts serve: slurmd cannot store its batch script, so Slurm would hold it.
    "" when it can; a failure is recorded as the reason of Slurm's drain."""
    failure = spool_failure(node)
    if not failure:
        return ""
    reason = f"hyperpod-kit: {failure}"
    if node.config.health.drain:
        gate_refusal.record_refusal(node, node.paths.gate_refusal_record, reason=reason, slurm_reason=SPOOL_REASON)
    return reason


def _mounts_unusable_for_job_now(node: Node, user: str, gate_end: float) -> List[MountStatus]:
    """The required mounts that a job cannot use, right now."""
    required = [mount for mount in node.mounts if mount.required and (not user or mount.owner in (None, user))]
    remaining = max(0.5, gate_end - node.clock.monotonic())
    deadline = min(node.config.health.deadline, LONGEST_LOOK, remaining)
    return [status for status in check_mounts(node, required, deadline) if node.config.health.keeps_jobs_away(status)]


def refusal_text(bad: List[MountStatus]) -> str:
    """One line for slurmd's log."""
    return "hyperpod-kit: " + "; ".join(map(_status_text, bad))


def _status_text(status: MountStatus) -> str:
    text = f"mount {status.name} at {status.path} is {status.state}"
    if status.detail:
        return f"{text}: {status.detail}"
    return text
