"""Records of how each rank ended: `<state>/exits/<attempt>/<rank>.json`, written by a wrapper around its command.

The exit code of srun does not say it: after --kill-on-bad-exit it is 137 or 143, whatever the rank that failed first
ended with.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.slurm import write_once
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from hyperpod_kit.untrusted.text import clean_one_line


class Exit(NamedTuple):
    """How one rank ended.

    Attributes:
        rank: Of the step.
        node: The node it ran on.
        boot_id: Of that node's kernel.
        code: The exit code; None when a signal killed it.
        signal: That signal.
        started: Unix seconds.
        ended: Unix seconds.
        step: The last training step that it is known to have completed.
        begins: The first training step that it did, after what it restored.
        launch: Tells apart the srun steps in which HyperPod has started the ranks of one attempt; "" when not known.
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
        """Whether the rank ended by itself with 0."""
        return self.code == 0

    @property
    def again(self) -> bool:
        """Whether the rank has saved and is to run again."""
        return self.code == ExitCode.AGAIN

    @property
    def without_data(self) -> bool:
        """Whether the rank could not read what it trains on, after everything was tried."""
        return self.code == ExitCode.NO_STORAGE


def directory(state: str, attempt: str) -> str:
    """Return the directory of an attempt's records."""
    return os.path.join(state, "exits", attempt)


def read(state: str, attempt: str) -> List[Exit]:
    """Return the records that are there, earliest end first, without incomplete ones. Raises OSError."""
    if "/" in attempt or attempt in ("", ".", ".."):
        return []  # others may have written the ledger that names it
    records: List[Exit] = []
    for _, _, value in write_once.read_all_records(directory(state, attempt)):
        with contextlib.suppress(ValueError):
            records.append(_exit(value))
    return sorted(records, key=lambda record: (record.ended, record.rank))


def last_launch(records: Sequence[Exit]) -> List[Exit]:
    """Return the records of the attempt's last launch, the last one of each rank.

    HyperPod's step retry starts the ranks of an attempt again, and what ended the launch before has been mended since.
    """
    if not records:
        return []
    launch = max(records, key=lambda record: record.started).launch
    of_rank: Dict[int, Exit] = {}
    for record in sorted(records, key=lambda record: record.started):
        if record.launch == launch:
            of_rank[record.rank] = record
    return sorted(of_rank.values(), key=lambda record: (record.ended, record.rank))


def _exit(value: Dict[str, Any]) -> Exit:
    """Return the record in a JSON object. Raises ValueError for what no wrapper writes."""
    record = dataclass_from_json(Exit, value)
    return record._replace(
        node=clean_one_line(record.node),
        boot_id=clean_one_line(record.boot_id),
        launch=clean_one_line(record.launch),
    )


def write(state: str, attempt: str, record: Exit) -> None:
    """Write a record once; an earlier one of the same rank stays. Raises OSError."""
    write_once.write_new_record(directory(state, attempt), str(record.rank), record._asdict())


def describe(record: Exit) -> Dict[str, Any]:
    """Return the fields of a record that the ledger and the report hold."""
    return {"rank": record.rank, "node": record.node, "code": record.code, "signal": record.signal}
