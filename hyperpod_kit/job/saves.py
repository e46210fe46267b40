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
    """durable: None when nothing was ever committed. lost: the newest row that came to nothing, when it is newer.
    unknown: why the root could not be asked, "" when it could."""

    durable: Optional[NewestDurable] = None
    lost: Optional[Row] = None
    unknown: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return {
            "durable": asdict(self.durable) if self.durable is not None else None,
            "lost": self.lost._asdict() if self.lost is not None else None,
            "unknown": self.unknown,
        }


def look(root: str) -> SaveStatus:
    """What the root says. Never raises for what lies there: `job status` has more to show."""
    try:
        store = open_store(root)
        durable: Optional[NewestDurable] = None
        for number, entry in enumerate(selection.iter_committed_not_excluded_newest_first(store)):
            at: Optional[float] = None
            tier = ""
            try:
                body = verify.read_manifest(store, entry.checkpoint_id)
                at, tier = manifest.parse_time(body.time), str(body.job.get("tier") or "")
            except (CheckpointError, FileNotFoundError):
                if number < _TRIED:
                    continue
            durable = NewestDurable(entry.checkpoint_id, entry.name.epoch, entry.name.seq, entry.name.step, at, tier)
            break
        row = failure_rows.read_newest(store)
    except (CheckpointError, OSError, ValueError) as err:
        return SaveStatus(unknown=clean_one_line(verify.describe_failure(err)))
    newer = row is not None and (durable is None or (row.epoch, row.seq) > (durable.epoch, durable.seq))
    return SaveStatus(durable, row if newer else None)


def sentences(found: SaveStatus, now: float) -> List[str]:
    """For people, a line each; none when there is nothing to say. `now`: Unix seconds."""
    if found.unknown:
        return [f"newest durable: unknown: {found.unknown}"]
    lines = []
    if found.durable is not None:
        at = found.durable.at
        kept = ", a save for memory that was brought to storage" if found.durable.tier == "memory" else ""
        lines.append(f"newest durable: step {found.durable.step}{f', {ago(now - at)}' if at is not None else ''}{kept}")
    elif found.lost is not None:
        lines.append("newest durable: none")
    if found.lost is not None:
        row = found.lost
        saves = "1 save" if row.lost_in_row == 1 else f"{row.lost_in_row} saves in a row"
        since = " since" if found.durable is not None else ""
        shape = "%H:%M" if 0 <= now - row.at < 12 * 3600 else "%Y-%m-%d %H:%M"
        lines.append(f"{saves} came to nothing{since} (at {time.strftime(shape, time.localtime(row.at))}): {row.why}")
    return lines
