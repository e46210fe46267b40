"""What stands, and which channels have accepted the alert of it: kept in a file from check to check.

Before anything is sent the file says that it stands, and after each acceptance that this channel has it. So a check
that is killed, a sink that is down and a machine that restarts lose no alert: the next check goes on. Killed between a
sink's acceptance and the note of it, a check sends that alert once more.

However long a sink is down and however often a directory goes up and down meanwhile, it gets one alert of it, with the
figures of the day when it is back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.storage.alerts import senders
from hyperpod_kit.storage.alerts.alert import Alert, AlertChannel
from hyperpod_kit.storage.alerts.config import AlertSinks
from hyperpod_kit.system import atomic_file
from hyperpod_kit.system.file_lock import try_lock
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.parse import parse_json_object

FORMAT = "hpk-alerts/1"
QUOTA_FORMAT = "hpk-quota-state/1"
"""Of builds that noted an alert as sent whatever its sink had answered: what is above is known, not who has it."""
MAX_FILE_BYTES = 64 << 20
MAX_TIMESTAMP = 1e11
"""A time in Unix seconds that no clock shows."""
SINK_TIMEOUT = 120.0
"""After which a sink gets no more alerts in this check: the next one goes on."""


@dataclass(frozen=True)
class StandingAlert:
    """An alert that stands.

    `since`: when it began, in Unix seconds; `accepted`: channels that have it; `over`: it has ended, and a channel has
    not accepted it yet. Its words are those of the last look, none where there was no look yet.
    """

    alert: Alert
    since: float
    accepted: frozenset[str] = frozenset()
    over: bool = False

    def pending_channels(self, sinks: AlertSinks) -> list[AlertChannel]:
        """List the channels that have not accepted it."""
        if not self.alert.sentence:
            return []
        return [
            channel for channel in senders.channels_for_alert(sinks, self.alert) if str(channel) not in self.accepted
        ]

    def alert_marked_if_over(self) -> Alert:
        """Render the alert as it is sent: one that comes late says of when it is."""
        if not self.over:
            return self.alert
        when = time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(self.since))
        return replace(
            self.alert,
            subject=f"{self.alert.subject} (over)",
            sentence=f"Since {when}, over in the meantime: {self.alert.sentence}",
        )

    @property
    def message_id(self) -> str:
        return hashlib.sha256(f"{self.alert.key} {self.since!r}".encode(errors="backslashreplace")).hexdigest()[:32]


@dataclass
class AlertReport:
    """What a check did.

    `new`: keys that stand since this check; `sent`: (key, channel) accepted in this check; `waiting`: (key, channel)
    to be tried again; `unheard`: keys that stand and that no channel is configured for; `failed`: lines.
    """

    new: list[str] = field(default_factory=list)
    sent: list[tuple[str, AlertChannel]] = field(default_factory=list)
    waiting: list[tuple[str, AlertChannel]] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form: keys and channels."""

        def rows(pairs: Sequence[tuple[str, AlertChannel]]) -> list[dict[str, str]]:
            return [{"about": key, "sink": channel.sink, "to": channel.address} for key, channel in pairs]

        return {"sent": rows(self.sent), "waiting": rows(self.waiting), "unheard": self.unheard}


class AlertOutbox:
    """The file `path`, while this process alone works on it: see `open_outbox`."""

    def __init__(self, path: Path, sinks: AlertSinks, standing: dict[str, StandingAlert]) -> None:
        self._path = path
        self._sinks = sinks
        self._standing = standing

    def standing_keys(self) -> frozenset[str]:
        """Return the keys of what stood at the last look, for a threshold that goes down later than it came up."""
        return frozenset(key for key, entry in self._standing.items() if not entry.over)

    def keys_except(self, excluded: Sequence[str]) -> list[str]:
        """Return the keys of the file without `excluded`."""
        return [key for key in self._standing if key not in excluded]

    def apply_observations_and_list_new_keys(
        self, retained_keys: Sequence[str], observed: Mapping[str, Alert | None], now: float | None = None
    ) -> list[str]:
        """Apply the outcome of an inspection: for each key that could be inspected its alert, or None for no alert.
        Keys that are not in `retained_keys` are forgotten. Returns the keys that stand since now.
        Nothing is written yet."""
        now = time.time() if now is None else now
        updated, new_keys = {}, []
        for key in retained_keys:
            previous = self._standing.get(key)
            current = previous
            if key in observed:
                current = _next_standing_alert(previous, observed[key], now)
            if current is None:
                continue
            if not current.over and (previous is None or previous.over):
                new_keys.append(key)
            updated[key] = current
        self._standing = updated
        return new_keys

    def send_pending_and_save(
        self,
        report: AlertReport,
        *,
        senders_of_sinks: Mapping[str, Callable[[AlertSinks], senders.AlertSender]] = senders.SENDERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write what stands to the file, send every sink what it has not accepted, and record each acceptance.

        Raises OSError when nothing can be written: then nothing is sent, as it would be sent again by every check.
        """
        write(self._path, self._standing)
        for sink in dict.fromkeys(
            channel.sink for entry in self._standing.values() for channel in entry.pending_channels(self._sinks)
        ):
            sender = senders_of_sinks[sink](self._sinks)
            try:
                self._send_pending_of_sink_saving_each(sender, sink, report, clock() + SINK_TIMEOUT, clock)
            finally:
                sender.close()
        self._standing = {
            key: entry for key, entry in self._standing.items() if not entry.over or entry.pending_channels(self._sinks)
        }
        write(self._path, self._standing)
        self.set_waiting_and_unheard_of(report)

    def set_waiting_and_unheard_of(self, report: AlertReport) -> None:
        """Report what waits, and what no channel is configured for."""
        report.waiting = [
            (key, channel) for key, entry in self._standing.items() for channel in entry.pending_channels(self._sinks)
        ]
        report.unheard = [
            key
            for key, entry in self._standing.items()
            if not entry.over and not senders.channels_for_alert(self._sinks, entry.alert)
        ]

    def _send_pending_of_sink_saving_each(
        self,
        sender: senders.AlertSender,
        sink: str,
        report: AlertReport,
        until: float,
        clock: Callable[[], float],
    ) -> None:
        for key, entry in list(self._standing.items()):
            to = [channel for channel in entry.pending_channels(self._sinks) if channel.sink == sink]
            if not to:
                continue
            if clock() >= until:
                report.failed.append(f"{sink}: it took {SINK_TIMEOUT:.0f} s; the next check sends the rest")
                return
            accepted = sender.send(entry.alert_marked_if_over(), to, entry.message_id)
            report.failed += accepted.failed
            if accepted.channels:
                report.sent += [(key, channel) for channel in accepted.channels]
                self._standing[key] = replace(
                    entry, accepted=entry.accepted | {str(part) for part in accepted.channels}
                )
                write(self._path, self._standing)
            if accepted.down:
                return


def _next_standing_alert(previous: StandingAlert | None, alert: Alert | None, now: float) -> StandingAlert | None:
    """Compute what stands after an inspection."""
    if alert is None:
        return None if previous is None else replace(previous, over=True)
    if previous is None:
        return StandingAlert(alert, now)
    if previous.over:
        # Who has heard of the time before hears of this one too, and who has not hears once.
        return StandingAlert(alert, now)
    return replace(previous, alert=alert, since=previous.since or now)


@contextlib.contextmanager
def open_outbox(path: Path, sinks: AlertSinks, *, exclusive: bool = True) -> Iterator[AlertOutbox]:
    """Open what earlier checks have noted; `exclusive`: for one that sends, which no other may do at the same time.

    Raises UsageError for a file of something else, HyperpodKitError while another check sends, OSError.
    """
    if not exclusive:
        yield AlertOutbox(path, sinks, read_standing_alerts_or_empty(path))
        return
    by_descriptor.make_directories(path.parent)
    lock = by_descriptor.open_own_or_root_file(
        path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        if not try_lock(lock):
            raise HyperpodKitError(
                f"{path}: another check is sending alerts",
                hint="wait for it, or check only: repeat the command with --dry-run",
            )
        yield AlertOutbox(path, sinks, read_standing_alerts_or_empty(path))
    finally:
        os.close(lock)


def inspect_and_send_alerts(
    path: Path,
    sinks: AlertSinks,
    inspect: Callable[[frozenset[str]], Mapping[str, Alert | None]],
    watched: Sequence[str],
    *,
    now: float | None = None,
) -> AlertReport:
    """Run a whole check: inspect, update what stands, and send every pending alert.

    `inspect`: from the keys that stood before to the outcome, see `AlertOutbox.apply_observations_and_list_new_keys`.

    Raises as `open_outbox` and `AlertOutbox.send_pending_and_save`. Of other keys that the file has nothing is
    forgotten: several checks may share it.
    """
    report = AlertReport()
    with open_outbox(path, sinks) as outbox:
        report.new = outbox.apply_observations_and_list_new_keys(
            [*watched, *outbox.keys_except(watched)], inspect(outbox.standing_keys()), now
        )
        outbox.send_pending_and_save(report)
    return report


def default_outbox_path(check_name: str) -> Path:
    """Return the default file of a check, in its user's home."""
    return Path.home() / ".local/state/hyperpod-kit/alerts" / f"{check_name}.json"


def read_standing_alerts_or_empty(path: Path) -> dict[str, StandingAlert]:
    """Read key -> what stands. Raises UsageError, OSError."""
    try:
        body = parse_json_object(by_descriptor.read_own_or_root_file(path, MAX_FILE_BYTES), MAX_FILE_BYTES)
        if body["format"] == QUOTA_FORMAT:
            return {str(key): StandingAlert(Alert(str(key), "", ""), 0.0) for key in body["above"]}
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r}")
        return {key: _decode(key, row) for key, row in body["alerts"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise UsageError(f"{path}: {err}: not a state file of alerts", hint="--state ANOTHER-FILE") from err


def write(path: Path, standing: Mapping[str, StandingAlert]) -> None:
    """Write what `read` takes back, on disk when this returns. Raises OSError."""
    body = {"format": FORMAT, "alerts": {key: _encode(entry) for key, entry in standing.items()}}
    atomic_file.write_atomically(path, json.dumps(body).encode() + b"\n", 0o600, durable=True)


def _encode(entry: StandingAlert) -> dict[str, Any]:
    alert = entry.alert
    return {
        "subject": alert.subject,
        "sentence": alert.sentence,
        "to": list(alert.to),
        "since": entry.since,
        "accepted": sorted(entry.accepted),
        "over": entry.over,
    }


def _decode(key: str, row: Mapping[str, Any]) -> StandingAlert:
    alert = Alert(key, str(row["subject"]), str(row["sentence"]), tuple(map(str, row["to"])))
    since = row["since"]
    if type(since) not in (int, float) or not 0 <= since < MAX_TIMESTAMP:
        raise ValueError(f"{since!r} is not a time")
    return StandingAlert(alert, float(since), frozenset(map(str, row["accepted"])), bool(row["over"]))
