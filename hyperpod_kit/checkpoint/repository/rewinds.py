"""Going back on purpose: `rewinds/000001.json` names the checkpoint that a run goes on from, and what is left thereby.

Left is what is newer than that checkpoint and was begun before: every attempt above it whose epoch is not above the
highest of that moment. It lies where it was and can be named, but nothing chooses it by itself any more, after whatever
kind of restart. Records are written once, and are few; going on from a checkpoint that was left takes the step back by
which it was left away.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Tuple

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


def record(store: Store, attempt: str, by: str = "") -> Rewind:
    """Go back to a committed attempt, from the next start on; it is pinned too, so that no policy deletes what the run
    stands on. Raises CheckpointError when it is not there, FileExistsError when somebody else did so just now, OSError.
    """
    pins.pin(store, attempt, f"gone back to{f' by {by}' if by else ''}")
    name = layout.parse_attempt(attempt)
    assert name is not None
    made = Rewind(attempt, (name.epoch, name.seq), catalog.highest(store)[0], by, manifest.now())
    numbers = [layout.parse_rewind(found) or 0 for found in store.list(layout.REWINDS)]
    body = {**made._asdict(), "order": list(made.order), "format": FORMAT}
    store.create(f"{layout.REWINDS}/{layout.rewind_file(max(numbers, default=0) + 1)}", manifest.seal_json(body))
    return made


def standing(store: Store) -> List[Rewind]:
    """Those that still count, oldest first. Raises CheckpointError for one that is damaged: to overlook it would take
    up again what was left on purpose; OSError."""
    found: List[Rewind] = []
    for file in store.list(layout.REWINDS):
        if layout.parse_rewind(file) is None:
            continue
        place = f"{layout.REWINDS}/{file}"
        try:
            made = _parse(manifest.open_json(store.read(place), place))
        except (CheckpointError, ValueError) as err:
            raise CheckpointError(
                f"{store.url}/{place} says which checkpoints were left on purpose, and is damaged: {err}",
                hint=f"remove it, and say again where to go on: hyperpod-kit job rewind {store.url} ATTEMPT",
            ) from err
        name = layout.parse_attempt(made.attempt)
        found = [one for one in found if name is None or not one.leaves(name)]
        found.append(made)
    return found


def why_left(rewinds: List[Rewind], name: layout.AttemptName) -> str:
    """Why nothing chooses that attempt, "" when it was not left."""
    for one in reversed(rewinds):
        if one.leaves(name):
            return f"left on purpose: the run went back to {one.attempt}" + (f" on {one.time}" if one.time else "")
    return ""


def _parse(body: Any) -> Rewind:
    attempt, order, epoch = body.get("attempt"), body.get("order"), body.get("epoch")
    if (
        body.get("format") != FORMAT
        or not isinstance(attempt, str)
        or layout.parse_attempt(attempt) is None
        or not isinstance(order, list)
        or len(order) != 2
        or any(type(one) is not int or one < 0 for one in (*order, epoch))
    ):
        raise ValueError("it is none of ours")
    return Rewind(attempt, (order[0], order[1]), epoch, str(body.get("by", "")), str(body.get("time", "")))
