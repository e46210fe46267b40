"""Reads a checkpoint root for its saves: the newest durable one, and failed saves in a row after it.

Only names, one manifest and one note of rank 0's agent are read, no data. About a root without them nothing is claimed.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional

from hyperpod_kit.checkpoint.agent.leader import failure_rows
from hyperpod_kit.checkpoint.agent.leader.failure_rows import Row
from hyperpod_kit.checkpoint.agent.reports.save_failures import ago
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import manifest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean_one_line, counted

_TRIED = 8
"""Damaged manifests that are passed over at most: whether a checkpoint can be trusted is not decided here."""


@dataclass(frozen=True)
class NewestDurable:
    """The newest committed checkpoint. `at`: Unix seconds, None when its manifest has no time. `tier`: "memory" for a
    save for memory that was brought to storage because memory might not last; "" for any other."""

    attempt: str
    epoch: int
    seq: int
    step: int
    at: Optional[float]
    tier: str = ""


@dataclass(frozen=True)
class SaveStatus:
    """What a checkpoint root shows about its saves.

    Attributes:
        durable: The newest committed checkpoint; None when nothing was ever committed.
        lost: The newest row of saves that came to nothing, when it is newer.
        failure: Why the root could not be read, "" when it could.
    """

    durable: Optional[NewestDurable] = None
    lost: Optional[Row] = None
    failure: str = ""

    def to_dict(self) -> Dict[str, Any]:
        fields: Dict[str, Any] = {"durable": None, "lost": None, "unknown": self.failure}
        if self.durable is not None:
            fields["durable"] = asdict(self.durable)
        if self.lost is not None:
            fields["lost"] = self.lost._asdict()
        return fields


def read_save_status(root: str) -> SaveStatus:
    """Return what the root shows about its saves. Never raises for what lies there: `job status` has more to show."""
    try:
        store = open_store(root)
        durable = _newest_durable(store)
        row = failure_rows.read_newest(store)
    except (CheckpointError, OSError, ValueError) as err:
        return SaveStatus(failure=clean_one_line(verify.describe_failure(err)))
    if row is not None and durable is not None and (row.epoch, row.seq) <= (durable.epoch, durable.seq):
        row = None
    return SaveStatus(durable, row)


def _newest_durable(store: Store) -> Optional[NewestDurable]:
    """Return the newest committed checkpoint; damaged manifests are passed over, unless there are many."""
    for number, entry in enumerate(selection.iter_committed_not_excluded_newest_first(store)):
        at: Optional[float] = None
        tier = ""
        try:
            body = verify.read_manifest(store, entry.checkpoint_id)
            at, tier = manifest.parse_time(body.time), str(body.job.get("tier") or "")
        except (CheckpointError, FileNotFoundError):
            if number < _TRIED:
                continue
        return NewestDurable(entry.checkpoint_id, entry.name.epoch, entry.name.seq, entry.name.step, at, tier)
    return None


def describe_save_status(status: SaveStatus, now: float) -> List[str]:
    """Return lines for people; none when there is nothing to report. `now`: Unix seconds."""
    if status.failure:
        return [f"newest durable: unknown: {status.failure}"]
    lines = []
    if status.durable is not None:
        lines.append(_describe_durable(status.durable, now))
    elif status.lost is not None:
        lines.append("newest durable: none")
    if status.lost is not None:
        lines.append(_describe_lost_saves(status.lost, now, has_durable=status.durable is not None))
    return lines


def _describe_durable(durable: NewestDurable, now: float) -> str:
    line = f"newest durable: step {durable.step}"
    if durable.at is not None:
        line += f", {ago(now - durable.at)}"
    if durable.tier == "memory":
        line += ", a capture in memory that was flushed to storage"
    return line


def _describe_lost_saves(row: Row, now: float, *, has_durable: bool) -> str:
    saves = counted(row.lost_in_row, "save", "saves in a row")
    verb = "failed"
    if has_durable:
        verb += " since"
    time_format = "%Y-%m-%d %H:%MZ"
    is_recent = 0 <= now - row.at < 12 * 3600
    if is_recent:
        time_format = "%H:%MZ"
    when = time.strftime(time_format, time.gmtime(row.at))
    return f"{saves} {verb} (at {when}): {row.why}"
