"""Where the state of a quota check is left each time: CloudWatch, Prometheus, the message at login."""

from __future__ import annotations

from typing import Callable, Sequence

from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.alerts.config import AlertSinks
from hyperpod_kit.storage.quota.limits import QuotaUsed
from hyperpod_kit.system.atomic_file import write_atomically
from hyperpod_kit.untrusted.text import clean_one_line

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
