"""Going back on purpose: `rewinds/000001.json` names the checkpoint that a run goes on from, and what is left thereby.

Left is what is newer than that checkpoint and was begun before: every attempt above it whose epoch is not above the
highest of that moment. It lies where it was and can be named, but nothing chooses it by itself any more, after whatever
kind of restart. Records are written once, and are few; whoever goes back to a checkpoint that was left takes the steps
back away that were made after it was saved.
"""

from __future__ import annotations

import os
from typing import Any, List, NamedTuple, Sequence, Tuple

from hyperpod_kit.checkpoint.repository import catalog, layout, manifest, pins
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError

FORMAT = "hpk-rewind/1"


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


def record(store: Store, attempt: str, epoch: int, by: str = "") -> Rewind:
    """Go back to a committed attempt, from the next start on, and leave what starts up to `epoch` have saved above it.

    It is pinned too, so that no policy deletes what the run
    stands on. Raises CheckpointError when it is not there, FileExistsError when somebody else did so just now, OSError.
    """
    pins.pin(store, attempt, f"gone back to{f' by {by}' if by else ''}")
    name = layout.parse_attempt(attempt)
    assert name is not None
    made = Rewind(attempt, (name.epoch, name.seq), epoch, by, manifest.now())
    numbers = [layout.parse_rewind(found) or 0 for found in store.list(layout.REWINDS)]
    body = {**made._asdict(), "order": list(made.order), "format": FORMAT}
    store.create(f"{layout.REWINDS}/{layout.rewind_file(max(numbers, default=0) + 1)}", manifest.seal_json(body))
    return made


def standing(store: Store) -> List[Rewind]:
    """Those that still count, oldest first. Raises CheckpointError for one that is damaged, or that somebody else has
    written: to overlook it would take up again what was left on purpose, to believe it would leave what was not;
    OSError."""
    found: List[Rewind] = []
    files = [file for file in store.list(layout.REWINDS) if layout.parse_rewind(file) is not None]
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


def _standing(records: Sequence[Rewind]) -> List[Rewind]:
    """Whoever goes back to a checkpoint is where the run was when it was saved: of the records before, those count
    that had been made by then."""
    if not records:
        return []
    *before, last = records
    return [*_standing([one for one in before if one.epoch < last.order[0]]), last]


def why_left(rewinds: List[Rewind], name: layout.AttemptName) -> str:
    """Why nothing chooses that attempt, "" when it was not left."""
    for one in reversed(rewinds):
        if one.leaves(name):
            return f"left on purpose: the run went back to {one.attempt}" + (f" on {one.time}" if one.time else "")
    return ""


def _require_owner(store: Store, place: str) -> None:
    """Where files have owners, it must be ours, root's or the owner of the root. Raises ValueError."""
    try:
        owner, root = os.lstat(os.path.join(store.url, place)).st_uid, os.stat(store.url).st_uid
    except OSError:
        return  # a storage whose objects have no owners
    if owner not in (os.geteuid(), 0, root):
        raise ValueError(f"it belongs to uid {owner}")


def _parse(body: Any, highest: int) -> Rewind:
    attempt, order, epoch = body.get("attempt"), body.get("order"), body.get("epoch")
    name = layout.parse_attempt(attempt) if isinstance(attempt, str) else None
    if (
        body.get("format") != FORMAT
        or name is None
        or order != [name.epoch, name.seq]
        or type(epoch) is not int
        or not 0 <= epoch <= highest
    ):
        raise ValueError("it is none of ours")
    return Rewind(str(attempt), (name.epoch, name.seq), epoch, str(body.get("by", "")), str(body.get("time", "")))
