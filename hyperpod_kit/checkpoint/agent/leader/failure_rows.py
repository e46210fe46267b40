"""Saves that came to nothing, said on the root itself, for who looks at the job from elsewhere.

    <root>/.hpk/saves-e000003-000008.json    the save with seq 8 of epoch 3 was the 1st, 2nd, 4th, 8th, ... in a row

Such a file is only ever created, as all else on a root. It proves nothing and nothing depends on it.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import NamedTuple, Optional

from hyperpod_kit.checkpoint.agent.shm.note_page import is_count, is_number_of_seconds
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.open import StoreOrRoot, as_store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json
from hyperpod_kit.untrusted.text import clean_one_line

FOLDER = ".hpk"
_LARGEST = 4096
_TRIED = 4
_NAME = re.compile(r"saves-e([0-9]{6,18})-([0-9]{6,18})\.json")


class Row(NamedTuple):
    """`lost_in_row` saves, this one being the last of them. `at`: Unix seconds."""

    epoch: int
    seq: int
    lost_in_row: int
    why: str
    at: float


def create_row_file_on_owned_root(store_or_root: StoreOrRoot, run_identity: identity.RunIdentity, row: Row) -> None:
    """Write the row to the root, while that is the run's. Raises CheckpointError, OSError."""
    store = as_store(store_or_root)
    identity.require_run_identity(store, run_identity)
    text = json.dumps(row._replace(why=clean_one_line(row.why))._asdict(), ensure_ascii=False)
    # An agent that died may have said it.
    with contextlib.suppress(FileExistsError):
        store.create(f"{FOLDER}/saves-e{row.epoch:06d}-{row.seq:06d}.json", text.encode("utf-8", "replace"))


def read_newest(store_or_root: StoreOrRoot) -> Optional[Row]:
    """Return the newest row on the root; None when there is none that can be read. Raises CheckpointError,
    OSError."""
    store = as_store(store_or_root)
    names = [
        (int(match.group(1)), int(match.group(2)), match.group(0))
        for match in map(_NAME.fullmatch, store.list(FOLDER))
        if match is not None
    ]
    for epoch, seq, name in sorted(names, reverse=True)[:_TRIED]:
        try:
            row = dataclass_from_json(Row, json.loads(store.read(f"{FOLDER}/{name}", _LARGEST)))
        except (CheckpointError, FileNotFoundError, ValueError, RecursionError):
            continue
        if (row.epoch, row.seq) == (epoch, seq) and is_count(row.lost_in_row) and is_number_of_seconds(row.at):
            return row._replace(why=clean_one_line(row.why))
    return None
