"""One look at every directory that has a limit: its owner and the admins are alerted once it is nearly full."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.storage.alerts import outbox as outboxes
from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.alerts.config import AlertConfig, AlertSinks
from hyperpod_kit.storage.alerts.outbox import AlertReport
from hyperpod_kit.storage.quota.limits import QuotaUsed
from hyperpod_kit.system.atomic_file import write_atomically
from hyperpod_kit.system.fullness import is_nearly_full
from hyperpod_kit.untrusted.text import clean_one_line


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
            row.directory: quota_alert_if_nearly_full(
                row, row.directory in previous_keys, _recipients(config, row.directory)
            )
            for row in used
        }
        above = [alert for alert in alerts.values() if alert is not None]
        report.new = outbox.apply_observations_and_list_new_keys(list(config.directories), alerts, now)
        if dry_run:
            outbox.set_waiting_and_unheard_of(report)
            return QuotaOutcome(used, above, report)
        report.failed += publish_quota_state(config.sinks, used, above)
        outbox.send_pending_and_save(report)
    return QuotaOutcome(used, above, report)


def _recipients(config: AlertConfig, directory: str) -> tuple[str, ...]:
    return (*config.directories[directory], *config.admins)


# Where the state of a quota check is left each time: CloudWatch, Prometheus, the message at login.

NAMESPACE = "HyperpodKit/Storage"


def publish_quota_state(sinks: AlertSinks, usages: Sequence[QuotaUsed], above: Sequence[Alert]) -> list[str]:
    """Publish all figures and the sentences of what is above; returns what failed, one line each."""
    failed = []
    if sinks.prometheus:
        failed += _call_and_list_failures(
            "prometheus", lambda: write_atomically(sinks.prometheus, _format_prometheus_series(usages).encode(), 0o644)
        )
    if sinks.motd:
        lines = "".join(clean_one_line(alert.sentence) + "\n" for alert in above)
        failed += _call_and_list_failures("motd", lambda: write_atomically(sinks.motd, lines.encode(), 0o644))
    if sinks.cloudwatch and usages:
        failed += _call_and_list_failures("cloudwatch", lambda: _put_cloudwatch_metrics(usages))
    return failed


def _call_and_list_failures(name: str, call: Callable[[], object]) -> list[str]:
    try:
        call()
        return []
    except (HyperpodKitError, OSError, ValueError) as err:
        return [f"{name}: {err}"]


def _put_cloudwatch_metrics(usages: Sequence[QuotaUsed]) -> None:
    points = [
        {
            "MetricName": "QuotaUsed",
            "Dimensions": [{"Name": "Directory", "Value": clean_one_line(directory.directory, 250)}],
            "Value": directory.share * 100,
            "Unit": "Percent",
        }
        for directory in usages
    ]
    with translate_aws_errors("PutMetricData", NAMESPACE):
        for start in range(0, len(points), 500):
            client("cloudwatch", None).put_metric_data(Namespace=NAMESPACE, MetricData=points[start : start + 500])


def _format_prometheus_series(usages: Sequence[QuotaUsed]) -> str:
    lines = []
    for name, values in (
        ("used_bytes", [usage.bytes for usage in usages]),
        ("limit_bytes", [usage.limits.hard_bytes or usage.limits.soft_bytes for usage in usages]),
        ("used_files", [usage.files for usage in usages]),
        ("limit_files", [usage.limits.hard_files or usage.limits.soft_files for usage in usages]),
        ("share", [usage.share for usage in usages]),
    ):
        lines.append(f"# TYPE hyperpod_kit_quota_{name} gauge")
        for usage, value in zip(usages, values):
            label = clean_one_line(usage.directory).replace("\\", "\\\\").replace('"', '\\"')
            if value is not None:
                lines.append(f'hyperpod_kit_quota_{name}{{directory="{label}"}} {value}')
    return "\n".join(lines) + "\n"


# When a directory is alerted of: from 80 % of its limit, and again only after it was below 75 %.


def quota_alert_if_nearly_full(used: QuotaUsed, was_standing: bool, to: tuple[str, ...]) -> Alert | None:
    """Make the alert of a directory that is nearly full; `was_standing`: whether it was so at the last look."""
    if not is_nearly_full(used.share, was_standing):
        return None
    return Alert(used.directory, f"{used.directory} is {used.share:.0%} full", describe_usage(used), to)


def describe_usage(used: QuotaUsed) -> str:
    """Describe usage in a sentence for every sink."""
    limits = used.limits
    room, files = limits.hard_bytes or limits.soft_bytes, limits.hard_files or limits.soft_files
    parts = []
    if room:
        parts.append(f"{used.bytes:,} of {room:,} bytes")
    if files and used.files is not None:
        parts.append(f"{used.files:,} of {files:,} files")
    grace = ""
    if used.grace:
        grace = f" (grace: {used.grace})"
    return (
        f"{used.directory} is {used.share:.1%} full: {', '.join(parts)}{grace}. At the limit nothing can be "
        "written, including checkpoints. To see what fills it and what may be deleted: hyperpod-kit storage "
        f"usage {used.directory}"
    )
