"""What a check prints of its alerts: a line for each, and which sink has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Sequence

from hyperpod_kit.cli.output import out, say

if TYPE_CHECKING:
    from hyperpod_kit.storage.alerts.alert import Alert, AlertChannel
    from hyperpod_kit.storage.alerts.config import AlertSinks
    from hyperpod_kit.storage.alerts.outbox import AlertReport


def show(standing: Sequence[Alert], report: AlertReport, *, dry_run: bool = False) -> None:
    """Print each alert that stands, and what was sent and still waits."""
    new = frozenset(report.new)
    for alert in standing:
        marker = ""
        if alert.key in new:
            marker = "new: "
        out(f"{marker}{alert.sentence}")
    for key, channels in _by_key(report.sent).items():
        out(f"{key}: sent to {channels}")
    for key, channels in _by_key(report.waiting).items():
        verb = "still to be sent"
        if dry_run:
            verb = "would be sent"
        out(f"{key}: {verb} to {channels}")


def warn(report: AlertReport, sinks: AlertSinks, file: str, *, shows: bool = False) -> None:
    """Print what failed, and alerts that reach nobody. `shows`: the state of this check is left elsewhere too."""
    for line in report.failed:
        say(f"failed: {line}")
    if shows:
        return
    if not sinks.can_alert:
        say(f"nobody is alerted: {file} names no mail server and no SNS topic among its sinks")
        return
    for key in report.unheard:
        say(f"{key}: nobody is alerted: {file} names no mail address for it, no admin and no SNS topic")


def send(
    file: Path, state: Path | None, check: str, watched: Sequence[str], judge: Callable[[str, bool], Alert | None]
) -> AlertReport:
    """Alert the admins whom `file` names, and say on standard error what was sent.

    `judge`: from a key, and whether it stood at the last look, to its alert. Raises UsageError, HyperpodKitError,
    OSError.
    """
    from hyperpod_kit.storage.alerts import config, outbox

    loaded = config.load(file)

    def evaluate_alerts(standing: frozenset[str]) -> dict[str, Alert | None]:
        judged = {key: judge(key, key in standing) for key in watched}
        return {key: alert and replace(alert, to=loaded.admins) for key, alert in judged.items()}

    report = outbox.check_and_send(state or outbox.default_path(check), loaded.sinks, evaluate_alerts, watched)
    for key, channels in _by_key(report.sent).items():
        say(f"{key}: sent to {channels}")
    for key, channels in _by_key(report.waiting).items():
        say(f"{key}: still to be sent to {channels}")
    warn(report, loaded.sinks, str(file))
    return report


def _by_key(pairs: Sequence[tuple[str, AlertChannel]]) -> dict[str, str]:
    grouped: dict[str, list[str]] = {}
    for key, channel in pairs:
        grouped.setdefault(key, []).append(str(channel))
    return {key: ", ".join(channels) for key, channels in grouped.items()}
