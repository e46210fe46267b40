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

from hyperpod_kit.checkpoint.repository import catalog, layout, manifest, pins
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError

FORMAT = "hpk-rewind/1"
FRESH_FORMAT = "hpk-fresh/1"


class Rewind(NamedTuple):
    """`order`: of the checkpoint that was gone back to; `epoch`: the highest at that moment."""

    attempt: str
    order: Tuple[int, int]
    epoch: int
    by: str = ""
    time: str = ""

    def leaves(self, name: layout.AttemptName) -> bool:
        """Whether that attempt was left by it."""
        return self.order < (name.epoch, name.seq) and name.epoch <= self.epoch

    @property
    def words(self) -> str:
        """What was done, for people."""
        return f"the run went back to {self.attempt}" + (f" on {self.time}" if self.time else "")


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

    def leaves(self, name: layout.AttemptName) -> bool:
        """Whether that attempt was left by it."""
        return name.epoch <= self.epoch or str(name) in self.named

    @property
    def words(self) -> str:
        """What was done, for people."""
        return "the run began anew at step 0" + (f" on {self.time}" if self.time else "")


Standing = Union[Rewind, FreshStart]


def record(store: Store, attempt: str, epoch: int, by: str = "") -> Rewind:
    """Go back to a committed attempt, from the next start on, and leave what starts up to `epoch` have saved above it.

    It is pinned too, so that no policy deletes what the run
    stands on. Raises CheckpointError when it is not there, FileExistsError when somebody else did so just now, OSError.
    """
    pins.pin(store, attempt, f"gone back to{f' by {by}' if by else ''}")
    name = layout.parse_attempt(attempt)
    assert name is not None
    made = Rewind(attempt, (name.epoch, name.seq), epoch, by, manifest.now())
    body = {**made._asdict(), "order": list(made.order), "format": FORMAT}
    store.create(f"{layout.REWINDS}/{layout.rewind_file(_next_number(store))}", manifest.seal_json(body))
    return made


def record_fresh_start(store: Store, epoch: int, *, named: Sequence[str] = (), by: str = "") -> FreshStart:
    """Begin anew at step 0, from the next start on, and leave all that starts up to `epoch` have saved. Nothing is
    deleted. Raises FileExistsError when somebody else did so just now, CheckpointError, OSError."""
    made = FreshStart(epoch, tuple(named), by, manifest.now())
    body = {**made._asdict(), "named": list(made.named), "format": FRESH_FORMAT}
    store.create(f"{layout.REWINDS}/{layout.fresh_start_file(_next_number(store))}", manifest.seal_json(body))
    return made


def _next_number(store: Store) -> int:
    return max((layout.rewind_number(file) or 0 for file in store.list(layout.REWINDS)), default=0) + 1


def standing(store: Store) -> List[Standing]:
    """Those that still count, oldest first. Raises CheckpointError for one that is damaged, or that somebody else has
    written: to overlook it would take up again what was left on purpose, to believe it would leave what was not;
    OSError."""
    found: List[Standing] = []
    files = [file for file in store.list(layout.REWINDS) if layout.rewind_number(file) is not None]
    highest = catalog.highest(store)[0] if files else 0
    for file in files:
        place = f"{layout.REWINDS}/{file}"
        try:
            _require_owner(store, place)
            found.append(_parse(manifest.open_json(store.read(place), place), highest))
        except (CheckpointError, ValueError) as err:
            raise CheckpointError(
                f"{store.url}/{place} says which checkpoints were left on purpose, and is not to be trusted: {err}",
                hint=f"remove it, and say again where to go on: hyperpod-kit job rewind {store.url} ATTEMPT",
            ) from err
    return _standing(found)


def _standing(records: Sequence[Standing]) -> List[Standing]:
    """Whoever goes back to a checkpoint is where the run was when it was saved: of the records before, those count
    that had been made by then."""
    if not records:
        return []
    *before, last = records
    return [*_standing([one for one in before if one.epoch < last.order[0]]), last]


def leaving(records: Sequence[Standing], name: layout.AttemptName) -> Optional[Standing]:
    """The newest record that leaves that attempt; None when it was not left."""
    return next((record for record in reversed(records) if record.leaves(name)), None)


def why_left(records: Sequence[Standing], name: layout.AttemptName) -> str:
    """Why nothing chooses that attempt, "" when it was not left."""
    record = leaving(records, name)
    return f"left on purpose: {record.words}" if record else ""


def fresh_start(records: Sequence[Standing]) -> Optional[FreshStart]:
    """The newest of these by which the run began anew; None when it never did."""
    return next((record for record in reversed(records) if isinstance(record, FreshStart)), None)


def _require_owner(store: Store, place: str) -> None:
    """Where files have owners, it must be ours, root's or the owner of the root. Raises ValueError."""
    try:
        owner, root = os.lstat(os.path.join(store.url, place)).st_uid, os.stat(store.url).st_uid
    except OSError:
        return  # a storage whose objects have no owners
    if owner not in (os.geteuid(), 0, root):
        raise ValueError(f"it belongs to uid {owner}")


def _parse(body: Any, highest: int) -> Standing:
    epoch = body.get("epoch")
    if type(epoch) is not int or not 0 <= epoch <= highest:
        raise ValueError("it is none of ours")
    by, time = str(body.get("by", "")), str(body.get("time", ""))
    if body.get("format") == FRESH_FORMAT:
        named = body.get("named")
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise ValueError("it is none of ours")
        return FreshStart(epoch, tuple(named), by, time)
    attempt, order = body.get("attempt"), body.get("order")
    name = layout.parse_attempt(attempt) if isinstance(attempt, str) else None
    if body.get("format") != FORMAT or name is None or order != [name.epoch, name.seq]:
        raise ValueError("it is none of ours")
    return Rewind(str(attempt), (name.epoch, name.seq), epoch, by, time)
