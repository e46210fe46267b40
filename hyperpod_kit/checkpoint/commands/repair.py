"""`checkpoint repair`: RUN.json, written again from what every checkpoint says about its run."""

from __future__ import annotations

import argparse
from typing import Any, Dict, Optional

from hyperpod_kit.checkpoint.commands.look import open_root
from hyperpod_kit.checkpoint.repository import identity, layout
from hyperpod_kit.checkpoint.repository.identity import Evidence, RunIdentity, Whose
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import terminal


def problem_of(store: Store, found: Whose, rest: Optional[Evidence] = None) -> Optional[str]:
    """What is wrong with RUN.json; None when it is whole, and at least one checkpoint is of its run, or none is there.

    Without `rest` the checkpoints are not asked. Raises OSError.
    """
    if found.identity is None:
        return found.problem
    if rest is not None and rest.runs and found.identity.run_id not in rest.runs:
        return f"{layout.RUN_FILE} is of {found.identity}, and no checkpoint here is: {identity.in_words(rest)}"
    return None


def remedy(store: Store) -> str:
    """The command that says more, and mends it."""
    return f"hyperpod-kit checkpoint repair {store.url}"


def repair(args: argparse.Namespace) -> int:
    """Write RUN.json again; nothing to do is fine. Raises CheckpointError when the root does not agree with itself."""
    store = open_root(args)
    found, rest = identity.said(store), identity.evidence(store)
    problem = problem_of(store, found, rest)
    chosen = _choose(store, args.run_id, rest)
    if chosen is None and problem is None:
        return _tell(args, store, found.identity, problem, "nothing to repair")
    if chosen is None and found.identity is not None:
        raise CheckpointError(
            f"{store.url}: {problem}",
            hint=f"{remedy(store)} --run-id ID  # of the run whose root "
            "it is; the checkpoints of others are then passed over",
        )
    wanted = chosen or identity.adopted(store)
    if wanted is None:
        raise CheckpointError(
            f"{store.url}: {problem}, and nothing was ever committed: nothing says whose root it is",
            hint="start the job: it makes a new one",
        )
    if found.identity == wanted:
        return _tell(args, store, wanted, None, "nothing to repair")
    if args.dry_run:
        return _tell(args, store, wanted, problem, "would be written")
    if found.there:
        identity.remove(store)
    return _tell(args, store, identity.write(store, wanted), problem, "was written")


def _choose(store: Store, run_id: Optional[str], rest: Evidence) -> Optional[RunIdentity]:
    if run_id is None:
        return None
    known = {found: who for found, (who, _) in rest.runs.items()}
    known.update({start.run_id: identity.named(start, store) for start in rest.starts if start.run_id not in known})
    matching = [who for found, who in known.items() if found.startswith(run_id)]
    if len(matching) != 1:
        raise CheckpointError(
            f"{len(matching)} runs of {store.url} have an id that begins with {run_id!r}, expected "
            f"1: {', '.join(sorted(map(str, known.values()))) or 'nothing here says whose it is'}"
        )
    return matching[0]


def _tell(args: argparse.Namespace, store: Store, who: Optional[RunIdentity], problem: Optional[str], what: str) -> int:
    if args.json:
        body: Dict[str, Any] = {
            "root": store.url,
            "run": who.run if who else None,
            "id": who.run_id if who else None,
            "problem": problem,
            "dry_run": args.dry_run,
            "written": what == "was written",
        }
        terminal.data(body)
    else:
        terminal.out(f"{layout.RUN_FILE} of {who}: {what}" + (f" ({problem})" if problem else ""))
    return 0
