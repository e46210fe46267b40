"""Where the state of a quota check is left each time: CloudWatch, Prometheus, the message at login."""

from __future__ import annotations

from typing import Callable, Sequence

from hyperpod_kit.aws.errors import translated
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.alerts.config import AlertSinks
from hyperpod_kit.storage.quota.limits import QuotaUsed
from hyperpod_kit.system.atomic_file import replace
from hyperpod_kit.untrusted.text import clean

NAMESPACE = "HyperpodKit/Storage"


def state(sinks: AlertSinks, every: Sequence[QuotaUsed], above: Sequence[Alert]) -> list[str]:
    """Leave all figures and the sentences of what is above; what failed, one line each."""
    failed = []
    if sinks.prometheus:
        failed += _tried("prometheus", lambda: replace(sinks.prometheus, _series(every).encode(), 0o644))
    if sinks.motd:
        lines = "".join(clean(alert.sentence) + "\n" for alert in above)
        failed += _tried("motd", lambda: replace(sinks.motd, lines.encode(), 0o644))
    if sinks.cloudwatch and every:
        failed += _tried("cloudwatch", lambda: _cloudwatch(every))
    return failed


def _tried(name: str, call: Callable[[], object]) -> list[str]:
    try:
        call()
        return []
    except (HyperpodKitError, OSError, ValueError) as err:
        return [f"{name}: {err}"]


def _cloudwatch(every: Sequence[QuotaUsed]) -> None:
    points = [
        {
            "MetricName": "QuotaUsed",
            "Dimensions": [{"Name": "Directory", "Value": clean(one.directory, 250)}],
            "Value": one.share * 100,
            "Unit": "Percent",
        }
        for one in every
    ]
    with translated("PutMetricData", NAMESPACE):
        for start in range(0, len(points), 500):
            client("cloudwatch", None).put_metric_data(Namespace=NAMESPACE, MetricData=points[start : start + 500])


def _series(every: Sequence[QuotaUsed]) -> str:
    lines = []
    for name, values in (
        ("used_bytes", [one.bytes for one in every]),
        ("limit_bytes", [one.limits.hard_bytes or one.limits.soft_bytes for one in every]),
        ("used_files", [one.files for one in every]),
        ("limit_files", [one.limits.hard_files or one.limits.soft_files for one in every]),
        ("share", [one.share for one in every]),
    ):
        lines.append(f"# TYPE hyperpod_kit_quota_{name} gauge")
        for one, value in zip(every, values):
            label = clean(one.directory).replace("\\", "\\\\").replace('"', '\\"')
            if value is not None:
                lines.append(f'hyperpod_kit_quota_{name}{{directory="{label}"}} {value}')
    return "\n".join(lines) + "\n"
