"""Going back on purpose: `rewinds/000001.json` names the checkpoint that a run goes on from, and what is left thereby.

Left is what is newer than that checkpoint and was begun before: every attempt above it whose epoch is not above the
highest of that moment. It lies where it was and can be named, but nothing chooses it by itself any more, after whatever
kind of restart. Records are written once, and are few; whoever goes back to a checkpoint that was left takes the steps
back away that were made after it was saved.

`rewinds/000002.fresh.json` is a step back to nothing: the run begins anew at step 0, and all that was there is left.
Builds before 0.1.0 do not know it, and pass over such a file.
"""

from __future__ import annotations

import os
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.records import catalog, pins
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError

FORMAT = "hpk-rewind/1"
FRESH_FORMAT = "hpk-fresh/1"


class Rollback(NamedTuple):
    """`order`: of the checkpoint that was gone back to; `epoch`: the highest at that moment."""

    attempt: str
    order: Tuple[int, int]
    epoch: int
    by: str = ""
    time: str = ""

    def excludes(self, name: layout.CheckpointId) -> bool:
        """Return whether this rollback excludes that checkpoint: the run went back to before it."""
        return self.order < (name.epoch, name.seq) and name.epoch <= self.epoch

    @property
    def description(self) -> str:
        """What was done, for people."""
        text = f"the run went back to {self.attempt}"
        if self.time:
            text += f" on {self.time}"
        return text


class FreshStart(NamedTuple):
    """The run begins anew at step 0: everything up to `epoch`, the highest at that moment, is left. `named`: what else
    records named as committed, whose epochs are no longer known here or who are other frameworks'."""

    epoch: int
    named: Tuple[str, ...] = ()
    by: str = ""
    time: str = ""

    @property
    def order(self) -> Tuple[int, int]:
        """Below that of every attempt."""
        return (0, 0)

    def excludes(self, name: layout.CheckpointId) -> bool:
        """Return whether this fresh start excludes that checkpoint."""
        return name.epoch <= self.epoch or str(name) in self.named

    @property
    def description(self) -> str:
        """What was done, for people."""
        text = "the run started again at step 0"
        if self.time:
            text += f" on {self.time}"
        return text


RollbackRecord = Union[Rollback, FreshStart]


def pin_and_record_rollback(store: Store, checkpoint_id: str, epoch: int, by: str = "") -> Rollback:
    """Pin a committed checkpoint, so that no policy deletes it, and record that the run goes back to it from the
    next start on, which excludes what starts up to `epoch` have saved after it.

    Raise CheckpointError when it is not there, FileExistsError when another process recorded one just now,
    OSError.
    """
    pins.pin(store, checkpoint_id, f"gone back to{f' by {by}' if by else ''}")
    name = layout.parse_checkpoint_id(checkpoint_id)
    assert name is not None
    rollback = Rollback(checkpoint_id, (name.epoch, name.seq), epoch, by, manifest.now())
    body = {**rollback._asdict(), "order": list(rollback.order), "format": FORMAT}
    store.create(f"{layout.ROLLBACKS}/{layout.rollback_file(_next_number(store))}", manifest.seal_json(body))
    return rollback


def record_fresh_start(store: Store, epoch: int, *, named: Sequence[str] = (), by: str = "") -> FreshStart:
    """Record that the run begins anew at step 0 from the next start on, which excludes all that starts up to
    `epoch` have saved. Nothing is deleted. Raise FileExistsError when another process recorded one just now,
    CheckpointError, OSError."""
    fresh_start = FreshStart(epoch, tuple(named), by, manifest.now())
    body = {**fresh_start._asdict(), "named": list(fresh_start.named), "format": FRESH_FORMAT}
    store.create(f"{layout.ROLLBACKS}/{layout.fresh_start_file(_next_number(store))}", manifest.seal_json(body))
    return fresh_start


def _next_number(store: Store) -> int:
    return max((layout.rollback_number(file) or 0 for file in store.list(layout.ROLLBACKS)), default=0) + 1


def read_active_records(store: Store) -> List[RollbackRecord]:
    """Return the records that still count, oldest first.

    Raise CheckpointError for one that is damaged, or that somebody else has written: to ignore it would use
    again what was left on purpose, to trust it would exclude what was not; OSError.
    """
    records: List[RollbackRecord] = []
    files = [file for file in store.list(layout.ROLLBACKS) if layout.rollback_number(file) is not None]
    highest = 0
    if files:
        highest = catalog.highest_epoch_and_seq(store)[0]
    for file in files:
        path = f"{layout.ROLLBACKS}/{file}"
        try:
            _require_trusted_owner(store, path)
            records.append(_parse_record(manifest.parse_sealed_json(store.read(path), path), highest))
        except (CheckpointError, ValueError) as err:
            raise CheckpointError(
                f"{store.url}/{path} lists the checkpoints that were rewound on purpose, but cannot be trusted: {err}",
                hint=f"remove it, then choose the checkpoint again: hyperpod-kit job rewind {store.url} ATTEMPT",
            ) from err
    return _active_records(records)


def _active_records(records: Sequence[RollbackRecord]) -> List[RollbackRecord]:
    """Return the records that still count. Whoever goes back to a checkpoint is where the run was when it was
    saved: of the earlier records, those count that had been made by then."""
    if not records:
        return []
    *before, last = records
    return [*_active_records([record for record in before if record.epoch < last.order[0]]), last]


def find_excluding_record(records: Sequence[RollbackRecord], name: layout.CheckpointId) -> Optional[RollbackRecord]:
    """Return the newest record that excludes that checkpoint; None when none does."""
    return next((record for record in reversed(records) if record.excludes(name)), None)


def exclusion_reason(records: Sequence[RollbackRecord], name: layout.CheckpointId) -> str:
    """Return why that checkpoint is never chosen, "" when no record excludes it."""
    record = find_excluding_record(records, name)
    if record:
        return f"left on purpose: {record.description}"
    return ""


def newest_fresh_start(records: Sequence[RollbackRecord]) -> Optional[FreshStart]:
    """Return the newest of these records by which the run began anew; None when it never did."""
    return next((record for record in reversed(records) if isinstance(record, FreshStart)), None)


def _require_trusted_owner(store: Store, path: str) -> None:
    """Raise ValueError unless the file belongs to this user, to root or to the owner of the checkpoint root,
    where files have owners."""
    try:
        owner, root = os.lstat(os.path.join(store.url, path)).st_uid, os.stat(store.url).st_uid
    except OSError:
        return  # a storage whose objects have no owners
    if owner not in (os.geteuid(), 0, root):
        raise ValueError(f"it belongs to uid {owner}")


def _parse_record(body: Any, highest_epoch: int) -> RollbackRecord:
    epoch = body.get("epoch")
    if type(epoch) is not int or not 0 <= epoch <= highest_epoch:
        raise ValueError("it was not written by hyperpod-kit")
    by, time = str(body.get("by", "")), str(body.get("time", ""))
    if body.get("format") == FRESH_FORMAT:
        named = body.get("named")
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise ValueError("it was not written by hyperpod-kit")
        return FreshStart(epoch, tuple(named), by, time)
    checkpoint_id, order = body.get("attempt"), body.get("order")
    name = None
    if isinstance(checkpoint_id, str):
        name = layout.parse_checkpoint_id(checkpoint_id)
    if body.get("format") != FORMAT or name is None or order != [name.epoch, name.seq]:
        raise ValueError("it was not written by hyperpod-kit")
    return Rollback(str(checkpoint_id), (name.epoch, name.seq), epoch, by, time)
