"""One look at every directory that has a limit: its owner and the admins are alerted once it is nearly full."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.storage.alerts import outbox as outboxes
from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.alerts.config import AlertConfig
from hyperpod_kit.storage.alerts.outbox import AlertReport
from hyperpod_kit.storage.quota import notifiers, thresholds
from hyperpod_kit.storage.quota.limits import QuotaUsed


@dataclass(frozen=True)
class QuotaOutcome:
    """Outcome of a check.

    `above`: directories that are nearly full; `alerts`: what became of the alerts, its `failed` lines with those of
    directories that could not be looked at.
    """

    used: list[QuotaUsed]
    above: list[Alert]
    alerts: AlertReport

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form: bytes, files and shares."""
        return {
            "used": [row.to_json() for row in self.used],
            "above": [alert.key for alert in self.above],
            "new": self.alerts.new,
            **self.alerts.to_json(),
            "failed": self.alerts.failed,
        }


def check_quotas_and_alert(
    config: AlertConfig,
    read_usage: Callable[[str], QuotaUsed],
    outbox_path: Path,
    *,
    dry_run: bool = False,
    now: float | None = None,
) -> QuotaOutcome:
    """Read the usage of the directories, publish it, send alerts and record which sink has accepted which.

    See alerts/outbox.py. `dry_run`: read only. Raises UsageError when `outbox_path` is of something else,
    HyperpodKitError while another check sends, OSError.
    """
    report = AlertReport()
    used = []
    for directory in config.directories:
        try:
            used.append(read_usage(directory))
        except (HyperpodKitError, OSError) as err:
            report.failed.append(f"{directory}: {err}")
    with outboxes.open_outbox(outbox_path, config.sinks, exclusive=not dry_run) as outbox:
        previous_keys = outbox.standing_keys()
        alerts = {
            row.directory: thresholds.quota_alert_if_nearly_full(
                row, row.directory in previous_keys, _recipients(config, row.directory)
            )
            for row in used
        }
        above = [alert for alert in alerts.values() if alert is not None]
        report.new = outbox.apply_observations_and_list_new_keys(list(config.directories), alerts, now)
        if dry_run:
            outbox.set_waiting_and_unheard_of(report)
            return QuotaOutcome(used, above, report)
        report.failed += notifiers.publish_quota_state(config.sinks, used, above)
        outbox.send_pending_and_save(report)
    return QuotaOutcome(used, above, report)


def _recipients(config: AlertConfig, directory: str) -> tuple[str, ...]:
    return (*config.directories[directory], *config.admins)
