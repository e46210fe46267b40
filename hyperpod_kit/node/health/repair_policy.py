"""What to do about a mount that does not serve: pure, and without what it takes to do it, since every check asks.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.states import ABSENT_OR_STALE, REPAIRS, MountState, RepairAction
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.node.observe.health_record import HealthRecord, seconds_before_next_repair

STRIKES = 2
"""A hung daemon is killed only when two checks in a row say that it hangs."""


def repair_action_for_state(mount: Mount, status: MountStatus, failures: int) -> RepairAction:
    """Return the repair that the state calls for; `failures` counts this check."""
    if status.state in ABSENT_OR_STALE:
        return RepairAction.RESTART
    if status.state == MountState.HUNG and kind_of(mount).restart_when_hung:
        if failures >= STRIKES:
            return RepairAction.KILL
        return RepairAction.WAIT
    # It serves, or something lives there, or it is the server's business: a person must look.
    return RepairAction.NONE


def repair_action_due_after_back_off(
    mount: Mount, status: MountStatus, record: HealthRecord, interval: float
) -> RepairAction:
    """Return the repair that is due: as `repair_action_for_state`, but `wait` also while the back-off lasts.
    `record` already counts this check."""
    action = repair_action_for_state(mount, status, record.failures)
    if action not in REPAIRS:
        return action
    # A clock that was set back must not stop repairs for good.
    since = status.checked_at - record.repaired_at
    if 0 <= since < seconds_before_next_repair(record.repairs, interval):
        return RepairAction.WAIT
    return action
