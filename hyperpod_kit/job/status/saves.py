"""What a checkpoint root says of its saves: the newest durable one, and a row that came to nothing after it.

Reads names, one manifest and one word of rank 0's agent; no data. Of a root that says nothing, nothing is claimed.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional

from hyperpod_kit.checkpoint.agent import failure_rows
from hyperpod_kit.checkpoint.agent.failure_rows import Row
from hyperpod_kit.checkpoint.agent.save_failures import ago
from hyperpod_kit.checkpoint.repository import manifest, selection, verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean_one_line

_TRIED = 8
"""Manifests that are damaged and passed over: whether a checkpoint can be trusted is not asked here."""


@dataclass(frozen=True)
class NewestDurable:
    """The newest committed checkpoint. `at`: Unix seconds, None when its manifest has no such time. `tier`: "memory" of
    a save for memory, which was brought to storage because memory might not last; "" of any other."""

    attempt: str
    epoch: int
    seq: int
    step: int
    at: Optional[float]
    tier: str = ""


@dataclass(frozen=True)
class SaveStatus:
    """What a root tells of its saves.

    Attributes:
        durable: The newest committed checkpoint; None when nothing was ever committed.
        lost: The newest row of saves that came to nothing, when it is newer.
        failure: Why the root could not be asked, "" when it could.
    """

    durable: Optional[NewestDurable] = None
    lost: Optional[Row] = None
    failure: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return {
            "durable": asdict(self.durable) if self.durable is not None else None,
            "lost": self.lost._asdict() if self.lost is not None else None,
            "unknown": self.failure,
        }


def read_save_status(root: str) -> SaveStatus:
    """Return what the root tells. Never raises for what lies there: `job status` has more to show."""
    try:
        store = open_store(root)
        durable = _newest_durable(store)
        row = failure_rows.read_newest(store)
    except (CheckpointError, OSError, ValueError) as err:
        return SaveStatus(failure=clean_one_line(verify.describe_failure(err)))
    is_newer = row is not None and (durable is None or (row.epoch, row.seq) > (durable.epoch, durable.seq))
    return SaveStatus(durable, row if is_newer else None)


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
    """Return a line each for people; none when there is nothing to report. `now`: Unix seconds."""
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
    age = f", {ago(now - durable.at)}" if durable.at is not None else ""
    origin = ", a save for memory that was brought to storage" if durable.tier == "memory" else ""
    return f"newest durable: step {durable.step}{age}{origin}"


def _describe_lost_saves(row: Row, now: float, *, has_durable: bool) -> str:
    saves = "1 save" if row.lost_in_row == 1 else f"{row.lost_in_row} saves in a row"
    since = " since" if has_durable else ""
    is_recent = 0 <= now - row.at < 12 * 3600
    shape = "%H:%M" if is_recent else "%Y-%m-%d %H:%M"
    when = time.strftime(shape, time.localtime(row.at))
    return f"{saves} came to nothing{since} (at {when}): {row.why}"
