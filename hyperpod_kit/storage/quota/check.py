"""One look at every directory that has a limit: who is told is told, and that it was is remembered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.storage.quota import crossings, sinks
from hyperpod_kit.storage.quota.crossings import QuotaAlert
from hyperpod_kit.storage.quota.limits import QuotaUsed
from hyperpod_kit.storage.quota.sinks import QuotaSinks
from hyperpod_kit.system.atomic_file import replace
from hyperpod_kit.untrusted import by_descriptor, files

FORMAT = "hpk-quota-state/1"
_LARGEST_STATE = 64 << 20
_KEYS = {"admins", "directories", "sinks"}


@dataclass(frozen=True)
class QuotaCheck:
    """What to look at: directory -> mail addresses of its owners; `admins` are told of all."""

    directories: dict[str, tuple[str, ...]]
    admins: tuple[str, ...]
    sinks: QuotaSinks


@dataclass(frozen=True)
class QuotaOutcome:
    """`new`: told of just now; `failed`: what could not be asked or told, one line each."""

    used: list[QuotaUsed]
    above: list[QuotaAlert]
    new: list[QuotaAlert]
    failed: list[str]

    def to_json(self) -> dict[str, Any]:
        """Bytes, files and shares."""
        return {
            "used": [one.to_json() for one in self.used],
            "above": [one.used.directory for one in self.above],
            "new": [one.used.directory for one in self.new],
            "failed": self.failed,
        }


def load(path: Path) -> QuotaCheck:
    """`{"admins": [mail…], "directories": {"/fsx/alice": [mail…]}, "sinks": {…}}`. Raises UsageError, OSError."""
    try:
        body = json.loads(path.read_text())
    except ValueError as err:
        raise UsageError(f"{path}: {err}: expected JSON") from err
    if not isinstance(body, dict) or not isinstance(body.get("directories"), dict) or set(body) - _KEYS:
        raise UsageError(f"{path}: expected an object with directories, and perhaps admins and sinks")
    directories = {name: _mails(path, mails) for name, mails in body["directories"].items()}
    if not isinstance(body.get("sinks", {}), dict):
        raise UsageError(f"{path}: sinks is no object")
    return QuotaCheck(directories, _mails(path, body.get("admins", [])), sinks.of(body.get("sinks", {})))


def check(asked: QuotaCheck, show: Callable[[str], QuotaUsed], state: Path, *, dry_run: bool = False) -> QuotaOutcome:
    """Look, tell, remember. Killed after telling and before remembering, it tells once more.

    `dry_run`: look only. Raises UsageError when `state` is not ours, OSError.
    """
    used, failed = [], []
    for directory in asked.directories:
        try:
            used.append(show(directory))
        except (HyperpodKitError, OSError) as err:
            failed.append(f"{directory}: {err}")
    before = _read(state)
    above, new = crossings.next_state(before, {one.directory: one.share for one in used})
    alerts = [
        QuotaAlert(one, (*asked.directories[one.directory], *asked.admins)) for one in used if one.directory in above
    ]
    fresh = [alert for alert in alerts if alert.used.directory in new]
    if not dry_run:
        failed += asked.sinks.state(used, alerts)
        for alert in fresh:
            failed += asked.sinks.tell(alert)
            before.add(alert.used.directory)
            _write(state, before)
        if above != before:
            _write(state, above)
    return QuotaOutcome(used, alerts, fresh, failed)


def _read(state: Path) -> set[str]:
    try:
        body = json.loads(files.read(str(state), _LARGEST_STATE))
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r}")
        return set(body["above"])
    except FileNotFoundError:
        return set()
    except (ValueError, KeyError, TypeError) as err:
        raise UsageError(f"{state}: {err}: not what `storage quota check` left", hint="--state ANOTHER-FILE") from err


def _write(state: Path, above: set[str]) -> None:
    by_descriptor.make_directories(state.parent)
    replace(state, json.dumps({"format": FORMAT, "above": sorted(above)}).encode() + b"\n", 0o600, durable=True)


def _mails(path: Path, found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(one, str) and "@" in one for one in found):
        raise UsageError(f"{path}: {found!r} is no list of mail addresses")
    return tuple(found)
