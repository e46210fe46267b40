"""What a node sent, as data. Pure, and on its guard: a node that is broken, or not ours any more, may say anything."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Mapping, NoReturn

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import STATES, MountState
from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import clean_one_line

MOST_MOUNTS = 200
WARNING = 500
"""Characters of a warning."""
LATEST_LINES = 20
"""Lines, counted from the end, that may begin the report: a login says things before it, a logout after it."""


class NoReport(ValueError):
    """The words are no report; the message says what they are."""


@dataclass(frozen=True)
class SentReport:
    """A node's own words, not judged yet. `node`: its name in Slurm; `checked_at`: Unix seconds by its own clock,
    0.0 unsaid."""

    node: str
    instance_id: str
    bundle_id: str
    checked_at: float
    mounts: tuple[MountStatus, ...]
    warnings: tuple[str, ...] = ()
    slurm: tuple[SlurmFinding, ...] = ()


def parse_mount_report(text: str) -> SentReport:
    """Parse the report in a node's standard output, which `hyperpod-kit node mounts --json` prints. Raises
    NoReport."""
    raw = _find_report(text)
    mounts = raw.get("mounts")
    if not isinstance(mounts, list) or not all(isinstance(mount, dict) for mount in mounts):
        raise NoReport("its report has no list of mounts")
    if len(mounts) > MOST_MOUNTS:
        raise NoReport(f"its report has {len(mounts)} mounts")
    try:
        return SentReport(
            clean_one_line(raw.get("node", "")),
            clean_one_line(raw.get("instance_id", "")),
            clean_one_line(raw.get("bundle_id", "")),
            _finite_number_or_raise(raw, "checked_at"),
            tuple(parse_mount_status(mount) for mount in mounts),
            tuple(clean_one_line(warning, WARNING) for warning in _strings_of_list(raw.get("warnings"))[:MOST_MOUNTS]),
            parse_slurm_findings(raw.get("slurm")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise NoReport(f"its report cannot be read: {clean_one_line(err)}") from err


def parse_slurm_findings(raw: Any) -> tuple[SlurmFinding, ...]:
    """Parse what the node's guard of Slurm has seen, made fit to be shown; () where its bundle has none.

    What is no finding is a fault of its own: what a node says of Slurm in other words is not health.
    """
    if raw is None:
        return ()
    if not isinstance(raw, list):
        return (_NO_FINDING,)
    return tuple(_finding_or_unreadable_fault(entry) for entry in raw[:MOST_MOUNTS])


_NO_FINDING = SlurmFinding("unreadable", "the node's report on Slurm cannot be read", "on it: hyperpod-kit node slurm")


def _finding_or_unreadable_fault(raw: Any) -> SlurmFinding:
    try:
        finding = dataclass_from_json(SlurmFinding, raw, ignore_unknown=True, require_all=True)
    except ValueError:
        return _NO_FINDING
    return SlurmFinding(
        clean_one_line(finding.code),
        clean_one_line(finding.detail, WARNING),
        clean_one_line(finding.remedy, WARNING),
        finding.fault,
    )


def parse_json_after_banner(text: str) -> dict[str, Any]:
    """Parse the JSON object in a text, after whatever a login printed before it. Raises ValueError."""
    return parse_json_object(text[max(0, text.find("{")) :])


def last_line_or_nothing_word(*texts: str) -> str:
    """Return the last line of the first text that has one, cut for a message; "nothing" without one."""
    for text in texts:
        lines = text[-4000:].strip().splitlines()
        if lines:
            return clean_one_line(lines[-1])[:120]
    return "nothing"


def _find_report(text: str) -> Mapping[str, Any]:
    """Return the last line that is a JSON object with mounts. Raises NoReport."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines[-LATEST_LINES:]):
        if not line.startswith("{"):
            continue
        try:
            value = json.loads(line, parse_constant=_raise_no_number)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "mounts" in value:
            return value
    raise NoReport(f"its answer is not a report: {last_line_or_nothing_word(text)}")


def _raise_no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _finite_number_or_raise(raw: Mapping[str, Any], key: str) -> float:
    value = raw.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{key} is not a number")
    return float(value)


def _strings_of_list(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for text in value if isinstance(text, str)]
    return []


def parse_mount_status(raw: Mapping[str, Any]) -> MountStatus:
    """Parse one mount; unknown fields are left out, for a node may run a newer bundle."""
    for key in ("name", "kind", "path", "state"):
        if not isinstance(raw[key], str):
            raise ValueError(f"{key} is not text")
    if raw["state"] in STATES:
        state = MountState(raw["state"])
        detail = clean_one_line(raw.get("detail", ""))
    else:
        state = MountState.UNKNOWN
        detail = f"the node reports `{clean_one_line(raw['state'])}` {clean_one_line(raw.get('detail', ''))}".strip()
    return MountStatus(
        clean_one_line(raw["name"]),
        clean_one_line(raw["kind"]),
        clean_one_line(raw["path"]),
        state,
        source=clean_one_line(raw.get("source", "")),
        detail=detail,
        latency_ms=_finite_number_or_raise(raw, "latency_ms"),
        required=raw.get("required", True) is not False,
        checked_at=_finite_number_or_raise(raw, "checked_at"),
        nearly_full=raw.get("nearly_full") is True,
        **{
            key: max(0, int(_finite_number_or_raise(raw, key)))
            for key in ("used_bytes", "free_bytes", "used_files", "free_files")
        },
    )
