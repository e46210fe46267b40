"""Where alerts go: mail, SNS, CloudWatch, Prometheus, the message at login."""

from __future__ import annotations

import smtplib
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, Callable, Mapping, Sequence

from hyperpod_kit.aws.errors import translated
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.storage.quota.crossings import QuotaAlert
from hyperpod_kit.storage.quota.limits import QuotaUsed
from hyperpod_kit.system.atomic_file import replace
from hyperpod_kit.untrusted.text import clean

SECONDS = 20.0
MAIL_PORT = 25
NAMESPACE = "HyperpodKit/Storage"


@dataclass(frozen=True)
class QuotaSinks:
    """Those that are configured. `mail`: HOST or HOST:PORT of an SMTP server and who it is from; `sns`: a topic's ARN;
    `cloudwatch`: whether; `prometheus` and `motd`: files, for node_exporter's textfile collector and /etc/motd.d."""

    mail: str = ""
    mail_from: str = "hyperpod-kit@localhost"
    sns: str = ""
    cloudwatch: bool = False
    prometheus: str = ""
    motd: str = ""

    def state(self, every: Sequence[QuotaUsed], above: Sequence[QuotaAlert]) -> list[str]:
        """What is said each time: series, and the message at login. What failed, one line each."""
        found = []
        if self.prometheus:
            found += _tried("prometheus", lambda: replace(self.prometheus, _series(every).encode(), 0o644))
        if self.motd:
            lines = "".join(clean(one.sentence) + "\n" for one in above)
            found += _tried("motd", lambda: replace(self.motd, lines.encode(), 0o644))
        if self.cloudwatch and every:
            found += _tried("cloudwatch", lambda: _cloudwatch(every))
        return found

    def tell(self, alert: QuotaAlert) -> list[str]:
        """What is said once. What failed, one line each."""
        found = []
        if self.mail and alert.to:
            found += _tried("mail", lambda: self._mail(alert))
        if self.sns:
            found += _tried("sns", lambda: _publish(self.sns, alert))
        return found

    def _mail(self, alert: QuotaAlert) -> None:
        message = EmailMessage()
        message["From"], message["To"] = self.mail_from, ", ".join(alert.to)
        message["Subject"] = f"{clean(alert.used.directory, 100)} is {alert.used.share:.0%} full"
        message.set_content(alert.sentence)
        host, _, port = self.mail.partition(":")
        with smtplib.SMTP(host, int(port or MAIL_PORT), timeout=SECONDS) as server:
            server.send_message(message)


def of(body: Mapping[str, Any]) -> QuotaSinks:
    """From the configuration's `sinks`. Raises UsageError."""
    unknown = sorted(set(body) - set(QuotaSinks.__dataclass_fields__))
    if unknown:
        raise UsageError(f"sinks: {unknown[0]!r} is none of {', '.join(QuotaSinks.__dataclass_fields__)}")
    for name, value in body.items():
        if not isinstance(value, bool if name == "cloudwatch" else str):
            raise UsageError(
                f"sinks: {name} is {value!r}, expected {'true or false' if name == 'cloudwatch' else 'text'}"
            )
    return QuotaSinks(**body)


def _tried(name: str, call: Callable[[], object]) -> list[str]:
    try:
        call()
        return []
    except (HyperpodKitError, OSError, smtplib.SMTPException, ValueError) as err:
        return [f"{name}: {err}"]


def _publish(topic: str, alert: QuotaAlert) -> None:
    region = topic.split(":")[3] if topic.count(":") >= 5 else None
    with translated("Publish", topic):
        subject = f"storage is {alert.used.share:.0%} full"
        client("sns", region).publish(TopicArn=topic, Subject=subject, Message=alert.sentence)


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
