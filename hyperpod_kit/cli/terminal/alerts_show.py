"""What a check prints of its alerts: a line for each, and which sink has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Sequence

from hyperpod_kit.cli.terminal.output import print_text, print_to_stderr

if TYPE_CHECKING:
    from hyperpod_kit.storage.alerts.alert import Alert, AlertChannel
    from hyperpod_kit.storage.alerts.config import AlertSinks
    from hyperpod_kit.storage.alerts.outbox import AlertReport


def print_alerts(standing: Sequence[Alert], report: AlertReport, *, dry_run: bool = False) -> None:
    """Print each alert that stands, and what was sent and still waits."""
    new = frozenset(report.new)
    for alert in standing:
        marker = ""
        if alert.key in new:
            marker = "new: "
        print_text(f"{marker}{alert.sentence}")
    for key, channels in _join_channels_by_key(report.sent).items():
        print_text(f"{key}: sent to {channels}")
    for key, channels in _join_channels_by_key(report.waiting).items():
        verb = "still to be sent"
        if dry_run:
            verb = "would be sent"
        print_text(f"{key}: {verb} to {channels}")


def print_failed_and_unaddressed_alerts(
    report: AlertReport, sinks: AlertSinks, config_file: str, *, published_elsewhere: bool = False
) -> None:
    """Print on stderr which alerts could not be sent, and which reach nobody.

    `published_elsewhere`: the state of this check is published too, so nobody need be alerted.
    """
    for line in report.failed:
        print_to_stderr(f"failed: {line}")
    if published_elsewhere:
        return
    if not sinks.has_mail_or_sns_sink:
        print_to_stderr(f"no alerts are sent: {config_file} has neither a mail server nor an SNS topic among its sinks")
        return
    for key in report.unheard:
        print_to_stderr(
            f"{key}: no alerts are sent: {config_file} has no mail address for it, no admin and no SNS topic"
        )


def check_send_and_print_alerts(
    config_path: Path,
    outbox_path: Path | None,
    check_name: str,
    watched_keys: Sequence[str],
    alert_for_key: Callable[[str, bool], Alert | None],
) -> AlertReport:
    """Evaluate the alerts of all watched keys, send what is new, and print on stderr what was sent.

    `alert_for_key`: from a key, and whether its alert stood at the last check, to its alert; the
    recipients are the admins that `config_path` names. Raises UsageError, HyperpodKitError, OSError.
    """
    from hyperpod_kit.storage.alerts import config, outbox

    loaded = config.load(config_path)

    def evaluate_alerts(standing: frozenset[str]) -> dict[str, Alert | None]:
        judged = {key: alert_for_key(key, key in standing) for key in watched_keys}
        return {key: alert and replace(alert, to=loaded.admins) for key, alert in judged.items()}

    report = outbox.inspect_and_send_alerts(
        outbox_path or outbox.default_outbox_path(check_name), loaded.sinks, evaluate_alerts, watched_keys
    )
    for key, channels in _join_channels_by_key(report.sent).items():
        print_to_stderr(f"{key}: sent to {channels}")
    for key, channels in _join_channels_by_key(report.waiting).items():
        print_to_stderr(f"{key}: still to be sent to {channels}")
    print_failed_and_unaddressed_alerts(report, loaded.sinks, str(config_path))
    return report


def _join_channels_by_key(pairs: Sequence[tuple[str, AlertChannel]]) -> dict[str, str]:
    grouped: dict[str, list[str]] = {}
    for key, channel in pairs:
        grouped.setdefault(key, []).append(str(channel))
    return {key: ", ".join(channels) for key, channels in grouped.items()}
