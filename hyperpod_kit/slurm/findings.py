"""What is wrong with Slurm as one node sees it: the words of the guard, and where it leaves them for all who report.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json
from hyperpod_kit.untrusted.files import open_nonblocking

RECORD = "/run/hyperpod-kit/slurm.json"
"""The guard's last record: as volatile as what it is about."""

FORMAT = "hpk-slurm-guard/1"

SILENT = "guard-silent"
"""Code of the finding that the guard itself has not looked."""

SILENT_AFTER = 180.0
"""Seconds after which a record says nothing any more of how things are."""

AHEAD = 60.0
"""Seconds that a record may be of the future: beyond, the clock was set back and its age is not known."""

LARGEST = 256 << 10
"""Bytes of a record that are read."""


@dataclass(frozen=True)
class SlurmFinding:
    """One thing. code: stable, for programs; detail: what was seen; remedy: what to do, "" where nothing is to be done.

    fault: jobs do not start, do not come back or lose work here; without it, it is a notice.
    """

    code: str
    detail: str
    remedy: str = ""
    fault: bool = True

    @property
    def message(self) -> str:
        """One line for a person."""
        if self.remedy:
            return f"{self.detail}; {self.remedy}"
        return self.detail


@dataclass(frozen=True)
class GuardRecord:
    """One look. checked_at: Unix seconds; notes: what the guard itself goes on from at its next look."""

    checked_at: float
    findings: Tuple[SlurmFinding, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> Dict[str, Any]:
        return {"format": FORMAT, **dataclass_to_json(self)}


def read_guard_record(path: str = RECORD) -> Optional[GuardRecord]:
    """Read the guard's last record; None where there is none that can be understood."""
    try:
        with open(path, "rb", opener=open_nonblocking) as stream:
            raw = parse.parse_json_object(stream.read(LARGEST))
        if raw.get("format") != FORMAT:
            return None
        return dataclass_from_json(GuardRecord, raw, ignore_unknown=True, require_all=True)
    except (OSError, ValueError):
        return None


def findings_or_guard_silent(record: Optional[GuardRecord], now: float) -> List[SlurmFinding]:
    """Return the record's findings, or the one finding `guard-silent` where there is no record, or one too old
    or from the future: nothing is known then, which is neither health nor a fault. Pure."""
    if record is None:
        return [_guard_silent_finding("the Slurm guard has written no record on this node")]
    age = now - record.checked_at
    if age > SILENT_AFTER:
        return [_guard_silent_finding(f"the Slurm guard has not run for {age:.0f} s, expected every 20 s")]
    if age < -AHEAD:
        return [_guard_silent_finding(f"the guard's last record is {-age:.0f} s ahead of this node's clock")]
    return list(record.findings)


def _guard_silent_finding(detail: str) -> SlurmFinding:
    return SlurmFinding(
        SILENT,
        f"unknown whether Slurm is healthy on this node: {detail}",
        "systemctl status hyperpod-kit-slurm-guard.timer hyperpod-kit-slurm-guard.service",
        fault=False,
    )
