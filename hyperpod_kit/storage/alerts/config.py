"""The file that says who is alerted, and by what: one for all checks of storage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from hyperpod_kit.errors import UsageError
from hyperpod_kit.untrusted import files
from hyperpod_kit.untrusted.parse import parse_json_object

MAX_FILE_BYTES = 16 << 20
_KEYS = {"admins", "directories", "sinks"}


@dataclass(frozen=True)
class AlertSinks:
    """The configured sinks. `mail`: HOST or HOST:PORT of an SMTP server; `mail_from`: the sender; `sns`: a topic's
    ARN. These take an alert once. `cloudwatch`: whether; `prometheus` and `motd`: files, for node_exporter's textfile
    collector and /etc/motd.d. These get the state of a quota check each time."""

    mail: str = ""
    mail_from: str = "hyperpod-kit@localhost"
    sns: str = ""
    cloudwatch: bool = False
    prometheus: str = ""
    motd: str = ""

    @property
    def has_mail_or_sns_sink(self) -> bool:
        """Whether an alert can be sent at all."""
        return bool(self.mail or self.sns)

    @property
    def has_quota_state_sink(self) -> bool:
        """Whether the state of a quota check is left anywhere."""
        return bool(self.cloudwatch or self.prometheus or self.motd)


@dataclass(frozen=True)
class AlertConfig:
    """Who is alerted. `directories`: directory -> mail addresses of its owners; `admins` get every alert."""

    directories: dict[str, tuple[str, ...]]
    admins: tuple[str, ...]
    sinks: AlertSinks


def load(path: Path) -> AlertConfig:
    """Load `{"admins": [mail…], "directories": {"/fsx/alice": [mail…]}, "sinks": {…}}`. Raises UsageError, OSError."""
    try:
        body: Mapping[str, Any] = parse_json_object(files.read_file_or_pipe(str(path), MAX_FILE_BYTES), MAX_FILE_BYTES)
    except ValueError as err:
        raise UsageError(f"{path}: {err}: expected JSON") from err
    directories = body.get("directories", {})
    if not isinstance(directories, dict) or set(body) - _KEYS:
        raise UsageError(f"{path}: expected an object with admins, directories and sinks, and nothing else")
    sinks = body.get("sinks", {})
    if not isinstance(sinks, dict):
        raise UsageError(f"{path}: sinks is not an object")
    owners = {name: _require_mail_addresses(path, addresses) for name, addresses in directories.items()}
    return AlertConfig(owners, _require_mail_addresses(path, body.get("admins", [])), parse_sinks(sinks))


def parse_sinks(body: Mapping[str, Any]) -> AlertSinks:
    """Parse the configuration's `sinks`. Raises UsageError."""
    unexpected = sorted(set(body) - set(AlertSinks.__dataclass_fields__))
    if unexpected:
        raise UsageError(f"sinks: {unexpected[0]!r} is not one of {', '.join(AlertSinks.__dataclass_fields__)}")
    for name, value in body.items():
        kind: type = str
        expected = "text"
        if name == "cloudwatch":
            kind, expected = bool, "true or false"
        if not isinstance(value, kind):
            raise UsageError(f"sinks: {name} is {value!r}, expected {expected}")
    return AlertSinks(**body)


def _require_mail_addresses(config_path: Path, addresses: Any) -> tuple[str, ...]:
    if not isinstance(addresses, list) or not all(isinstance(address, str) and "@" in address for address in addresses):
        raise UsageError(f"{config_path}: {addresses!r} is not a list of mail addresses")
    return tuple(addresses)
