"""`checkpoint repair`: RUN.json, written again from what every checkpoint says about its run, and manifests that were
lost, made again from files that prove themselves (rebuild.py)."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

from hyperpod_kit.checkpoint.commands import rebuild
from hyperpod_kit.checkpoint.commands.look import open_root
from hyperpod_kit.checkpoint.commands.rebuild import Rebuilt
from hyperpod_kit.checkpoint.commands.table import size
from hyperpod_kit.checkpoint.repository import catalog, identity, layout, selection
from hyperpod_kit.checkpoint.repository.commit_records import LostCommit
from hyperpod_kit.checkpoint.repository.identity import Evidence, RunFile, RunIdentity
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import terminal

NOTHING, WRITTEN = "nothing to repair", "was written"


def problem_of(store: Store, found: RunFile, rest: Optional[Evidence] = None) -> Optional[str]:
    """What is wrong with RUN.json; None when it is whole, and at least one checkpoint is of its run, or none is there.

    Without `rest` the checkpoints are not asked. Raises OSError.
    """
    if found.identity is None:
        return found.problem
    if rest is not None and rest.runs and found.identity.run_id not in rest.runs:
        return f"{layout.RUN_FILE} is of {found.identity}, and no checkpoint here is: {identity.describe_runs(rest)}"
    return None


def remedy(store: Store) -> str:
    """The command that says more, and mends it."""
    return f"hyperpod-kit checkpoint repair {store.url}"


def repair(args: argparse.Namespace) -> int:
    """Write RUN.json and lost manifests again; nothing to do is fine: 0. 1 when the newest that was committed is lost
    and cannot be rebuilt. Raises CheckpointError when the root does not agree with itself."""
    store = open_root(args)
    run = _repair_run(args, store)
    rebuilt = rebuild.rebuild_all(store, run.identity, dry_run=args.dry_run)
    good = {one.attempt for one in rebuilt if not one.why}
    lost = [one for one in _newer_than_all(store, good) if one.checkpoint_id not in good]
    _tell(args, store, run, rebuilt, lost)
    return 1 if lost else 0


class RunRepair(NamedTuple):
    """What was done about RUN.json."""

    identity: RunIdentity
    problem: Optional[str]
    done: str


def _repair_run(args: argparse.Namespace, store: Store) -> RunRepair:
    found, rest = identity.read_run_file(store), identity.evidence(store)
    problem = problem_of(store, found, rest)
    chosen = _choose(store, args.run_id, rest)
    if chosen is None and problem is None and found.identity is not None:
        return RunRepair(found.identity, None, NOTHING)
    if chosen is None and found.identity is not None:
        raise CheckpointError(
            f"{store.url}: {problem}",
            hint=f"{remedy(store)} --run-id ID  # of the run whose root "
            "it is; the checkpoints of others are then passed over",
        )
    wanted = chosen or identity.infer_identity(store)
    if wanted is None:
        raise CheckpointError(
            f"{store.url}: {problem}, and nothing says whose root it is: neither a manifest nor a start",
            hint="start the job: it makes a new one",
        )
    if found.identity == wanted:
        return RunRepair(wanted, None, NOTHING)
    if args.dry_run:
        return RunRepair(wanted, problem, "would be written")
    if found.exists:
        identity.remove(store)
    return RunRepair(identity.write(store, wanted), problem, WRITTEN)


def _newer_than_all(store: Store, rebuilt: Set[str]) -> List[LostCommit]:
    """What was committed and is lost, and is newer than all that is there or `rebuilt`. Raises CheckpointError,
    OSError."""
    names = [
        layout.parse_checkpoint_id(name) for name in (catalog.newest_committed(store), *rebuilt) if name is not None
    ]
    newest = max((catalog.sort_key(name) for name in names if name is not None), default=None)
    found = []
    for lost in selection.lost_commits(store):
        name = layout.parse_checkpoint_id(lost.checkpoint_id)
        if newest is None or (name is not None and catalog.sort_key(name) > newest):
            found.append(lost)
    return found


def _choose(store: Store, run_id: Optional[str], rest: Evidence) -> Optional[RunIdentity]:
    if run_id is None:
        return None
    known = {found: who for found, (who, _) in rest.runs.items()}
    known.update({start.run_id: identity.with_name(start, store) for start in rest.starts if start.run_id not in known})
    matching = [who for found, who in known.items() if found.startswith(run_id)]
    if len(matching) != 1:
        raise CheckpointError(
            f"{len(matching)} runs of {store.url} have an id that begins with {run_id!r}, expected "
            f"1: {', '.join(sorted(map(str, known.values()))) or 'nothing here says whose it is'}"
        )
    return matching[0]


def _tell(
    args: argparse.Namespace, store: Store, run: RunRepair, rebuilt: Sequence[Rebuilt], lost: Sequence[LostCommit]
) -> None:
    if args.json:
        body: Dict[str, Any] = {
            "root": store.url,
            "run": run.identity.run,
            "id": run.identity.run_id,
            "problem": run.problem,
            "dry_run": args.dry_run,
            "written": run.done == WRITTEN,
            "manifests": [
                {
                    "attempt": one.attempt,
                    "provable": not one.why,
                    "written": not (one.why or args.dry_run),
                    "why": one.why,
                }
                for one in rebuilt
            ],
            "lost": [{"attempt": one.name, "why": one.reason} for one in lost],
        }
        terminal.data(body)
        return
    why = f" ({run.problem})" if run.problem else ""
    terminal.out(f"{layout.RUN_FILE} of {run.identity}: {run.done}{why}")
    verb = "would be rebuilt" if args.dry_run else "rebuilt"
    for one in rebuilt:
        shards = "1 shard" if one.world == 1 else f"{one.world} shards"
        terminal.out(
            f"{one.attempt}  not rebuilt: {one.why}"
            if one.why
            else f"{one.attempt}  {verb}: {size(one.size)} in {shards}"
        )
    for commit in lost:
        terminal.out(f"{commit.name}  LOST: {commit.reason}")
