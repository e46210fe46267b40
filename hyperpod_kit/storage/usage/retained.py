"""Which checkpoints a run could do without, and how much room they take: named, never deleted."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Iterable, NamedTuple

from hyperpod_kit.checkpoint.repository import identity, retention, verify
from hyperpod_kit.checkpoint.repository.policy import Latest
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.untrusted import owner


class Deletable(NamedTuple):
    """A checkpoint that `checkpoint prune` would delete; `error`: why a whole run could not be judged."""

    run: str
    attempt: str
    why: str
    allocated: int
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Bytes."""
        return self._asdict()


def deletable(runs: Iterable[str], keep: int) -> list[Deletable]:
    """What the newest `keep` checkpoints of each run could be without, by the rules of retention: never the newest
    valid one or a newer, never what is pinned or being read."""
    found: list[Deletable] = []
    for run in sorted(runs):
        try:
            found += [Deletable(*row) for row in owner.as_owner(run, partial(_of_run, run, keep))]
        except (HyperpodKitError, OSError) as err:
            found.append(Deletable(run, "", "", 0, verify.describe_failure(err)))
    return found


def _of_run(run: str, keep: int) -> list[Deletable]:
    store = open_store(run)
    whose = identity.find_identity(store)
    items = retention.survey(store, run_id=whose.run_id if whose else "")
    planned = retention.plan(items, Latest(keep))
    return [Deletable(run, attempt, why, _allocated(Path(run) / attempt)) for attempt, why in planned.delete]


def _allocated(attempt: Path) -> int:
    try:
        return sum(file.lstat().st_blocks * 512 for file in attempt.iterdir())
    except OSError:
        return 0
