"""What the checks of the mounts found so far, kept from one check to the next.

/run/hyperpod-kit/health.json, one file for all mounts: it costs no disk write, and it is gone after a reboot, as the
mounts are.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, FrozenSet, Mapping, Optional

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.node_config import HealthPolicy
from hyperpod_kit.model.states import MountState
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, write_volatile_json
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json

LONGEST_PAUSE = 300.0
"""Seconds between repairs of a mount that will not come back: slower and slower, but never given up."""


@dataclass(frozen=True)
class HealthRecord:
    """One mount. Times are Unix seconds, 0.0 for never.

    failures: checks in a row that keep jobs away; since: when the mount came into its present state;
    repairs: repairs ordered since it was last healthy for long enough, which the back-off counts;
    repairs_total, failed_repairs_total: since boot; repaired_at: when the last was ordered; result_at: of the last
    result that was read; deep_at: of the last list or write that succeeded, on the mount `mount_id`;
    users_refused: what its users cannot write, in words, "" for nothing; users_asked_at: when that was tried.
    """

    status: Mapping[str, Any]
    failures: int = 0
    degraded: bool = False
    since: float = 0.0
    healthy_since: float = 0.0
    repairs: int = 0
    repairs_total: int = 0
    failed_repairs_total: int = 0
    repaired_at: float = 0.0
    result_at: float = 0.0
    last_repair: str = ""
    deep_at: float = 0.0
    mount_id: int = 0
    users_refused: str = ""
    users_asked_at: float = 0.0

    @property
    def state(self) -> str:
        """The state at the last check; "" before the first."""
        return str(self.status.get("state", ""))

    @property
    def nearly_full(self) -> bool:
        """Whether the mount was nearly full at the last check."""
        return self.status.get("nearly_full") is True

    @property
    def is_usable_by_jobs(self) -> bool:
        """Whether a job can use the mount for all that it may want to."""
        return self.failures == 0 and self.state != MountState.FULL

    def after_check(self, status: MountStatus, policy: HealthPolicy) -> HealthRecord:
        """The record after one more check."""
        now = status.checked_at
        if status.state == self.state:
            since = self.since
        else:
            since = now
        if policy.keeps_jobs_away(status):
            failures = self.failures + 1
            return replace(
                self,
                status=asdict(status),
                failures=failures,
                since=since,
                healthy_since=0.0,
                degraded=failures >= policy.degraded_after,
            )
        healthy_since = min(self.healthy_since or now, now)
        # A mount that dies again and again is repaired slower and slower, too.
        stable = now - healthy_since >= seconds_before_next_repair(self.repairs, policy.interval)
        return replace(
            self,
            status=asdict(status),
            failures=0,
            degraded=False,
            since=since,
            healthy_since=healthy_since,
            repairs=0 if stable else self.repairs,
        )


def seconds_before_next_repair(repairs: int, interval: float) -> float:
    """Seconds that must pass after that many repairs before the next."""
    return BackOff(interval, LONGEST_PAUSE).pause_seconds(repairs)


def load_health_records(node: Node) -> Dict[str, HealthRecord]:
    """The records by name of the mount; empty when there are none that can be read."""
    raw: Optional[Any] = read_json(node.paths.health_records)
    records = {}
    mounts = None
    if isinstance(raw, dict):
        mounts = raw.get("mounts")
    for name, entry in (mounts if isinstance(mounts, dict) else {}).items():
        with contextlib.suppress(ValueError):
            records[name] = dataclass_from_json(HealthRecord, entry, ignore_unknown=True)
    return records


def names_of_nearly_full(records: Mapping[str, HealthRecord]) -> FrozenSet[str]:
    """Names of those that were nearly full at the last check."""
    return frozenset(name for name, record in records.items() if record.nearly_full)


def save_health_records(node: Node, records: Mapping[str, HealthRecord], checked_at: float) -> None:
    write_volatile_json(
        node.paths.health_records,
        {
            "node": node.facts.node,
            "checked_at": checked_at,
            # `status` is a plain dictionary already: asdict would copy every word of it.
            "mounts": {name: vars(record) for name, record in records.items()},
        },
    )
