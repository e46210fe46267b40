"""Which checkpoints a run could do without, and how much room they take: named, never deleted."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Iterable, NamedTuple

from hyperpod_kit.checkpoint.repository import retention
from hyperpod_kit.checkpoint.repository.policy import Latest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import identity
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


def list_deletable(runs: Iterable[str], keep: int) -> list[Deletable]:
    """List what the newest `keep` checkpoints of each run could be without, by the rules of retention: never the newest
    valid one or a newer, never what is pinned or being read."""
    checkpoints: list[Deletable] = []
    for run in sorted(runs):
        try:
            checkpoints += [
                Deletable(*row)
                for row in owner.run_as_owner_in_child_if_root(run, partial(_deletable_of_run, run, keep))
            ]
        except (HyperpodKitError, OSError) as err:
            checkpoints.append(Deletable(run, "", "", 0, verify.describe_failure(err)))
    return checkpoints


def _deletable_of_run(run: str, keep: int) -> list[Deletable]:
    store = open_store(run)
    identity_of_run = identity.read_or_infer_identity(store)
    run_id = identity_of_run.run_id if identity_of_run else ""
    items = retention.judge_all_checkpoints(store, run_id=run_id)
    planned = retention.plan(items, Latest(keep))
    return [
        Deletable(run, attempt, reason, _allocated_bytes(Path(run) / attempt)) for attempt, reason in planned.delete
    ]


def _allocated_bytes(checkpoint_directory: Path) -> int:
    try:
        return sum(file.lstat().st_blocks * 512 for file in checkpoint_directory.iterdir())
    except OSError:
        return 0
