"""How each rank really ended: `<state>/exits/<attempt>/<rank>.json`, written by a wrapper around the rank's command.

srun cannot be asked: after --kill-on-bad-exit it reports 137 or 143, whatever the rank that failed first said.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, fields
from typing import Any, Dict, List, Optional, Sequence

from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.slurm import write_once
from hyperpod_kit.untrusted.text import clean_one_line

_NEEDED = ("rank", "node", "boot_id", "code", "signal", "started", "ended")
_MOST = 1 << 62


@dataclass(frozen=True)
class Exit:
    """One rank's end. `code` is None when `signal` killed it; times are Unix seconds.

    step: the last one that it is known to have completed; begins: the first that it did, after what it restored.
    launch: tells the srun steps apart in which HyperPod has started the ranks of one attempt, "" when not known.
    """

    rank: int
    node: str
    boot_id: str
    code: Optional[int]
    signal: Optional[int]
    started: float
    ended: float
    step: Optional[int] = None
    begins: Optional[int] = None
    launch: str = ""

    @property
    def good(self) -> bool:
        """Ended by itself with 0."""
        return self.code == 0

    @property
    def again(self) -> bool:
        """Saved and wants to run again."""
        return self.code == ExitCode.AGAIN

    @property
    def without_data(self) -> bool:
        """It could not read what it trains on, after everything was tried."""
        return self.code == ExitCode.NO_STORAGE


def directory(state: str, attempt: str) -> str:
    """Where an attempt's records lie."""
    return os.path.join(state, "exits", attempt)


def read(state: str, attempt: str) -> List[Exit]:
    """The records that are there, earliest end first. A record that is not complete is skipped. Raises OSError."""
    if "/" in attempt or attempt in ("", ".", ".."):
        return []  # the ledger that names it may be another's words
    records: List[Exit] = []
    for _, _, value in write_once.read_all_records(directory(state, attempt)):
        with contextlib.suppress(ValueError):
            records.append(_exit(value))
    return sorted(records, key=lambda record: (record.ended, record.rank))


def last_launch(records: Sequence[Exit]) -> List[Exit]:
    """Of the records of one attempt those of its last launch, of each rank the last: HyperPod's step retry starts the
    ranks of an attempt again, and what ended the launch before has been mended since."""
    if not records:
        return []
    launch = max(records, key=lambda record: record.started).launch
    of_rank: Dict[int, Exit] = {}
    for record in sorted(records, key=lambda record: record.started):
        if record.launch == launch:
            of_rank[record.rank] = record
    return sorted(of_rank.values(), key=lambda record: (record.ended, record.rank))


def _exit(value: Dict[str, Any]) -> Exit:
    """Raises ValueError for what no wrapper writes."""
    if not set(_NEEDED) <= set(value) or not set(value) <= {record_field.name for record_field in fields(Exit)}:
        raise ValueError("not the fields of a record")
    for name, given in value.items():
        expected_type = (
            str if name in ("node", "boot_id", "launch") else (int, float) if name in ("started", "ended") else int
        )
        if given is None and name not in _NEEDED[:3]:
            continue
        if (
            isinstance(given, bool)
            or not isinstance(given, expected_type)
            or (not isinstance(given, str) and not -_MOST < given < _MOST)
        ):
            raise ValueError(f"{name} is {given!r}")
    if value["started"] is None or value["ended"] is None:
        raise ValueError("no times")
    text_fields = {name: clean_one_line(value.get(name) or "") for name in ("node", "boot_id", "launch")}
    return Exit(**{**value, **text_fields})


def write(state: str, attempt: str, record: Exit) -> None:
    """Write a record once; an earlier one of the same rank stays. Raises OSError."""
    write_once.write_new_record(directory(state, attempt), str(record.rank), asdict(record))


def describe(record: Exit) -> Dict[str, Any]:
    """For the report: who ended how."""
    return {"rank": record.rank, "node": record.node, "code": record.code, "signal": record.signal}
