"""`checkpoint repair`: RUN.json, written again from what every checkpoint says about its run, and manifests that were
lost, made again from files that prove themselves (rebuild.py)."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

from hyperpod_kit.checkpoint.commands import rebuild
from hyperpod_kit.checkpoint.commands.inspection import open_existing_root_as_owner
from hyperpod_kit.checkpoint.commands.rebuild import Rebuilt
from hyperpod_kit.checkpoint.commands.table import format_byte_count
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.records import catalog, identity
from hyperpod_kit.checkpoint.repository.records.commit_records import LostCommit
from hyperpod_kit.checkpoint.repository.records.identity import Evidence, RunFile, RunIdentity
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import terminal

NOTHING, WRITTEN = "nothing to repair", "was written"


def run_file_problem(store: Store, record: RunFile, evidence: Optional[Evidence] = None) -> Optional[str]:
    """Return what is wrong with RUN.json; None when it is valid, and at least one checkpoint is of its run, or
    none is there.

    Without `evidence` the checkpoints are not looked at. Raise OSError.
    """
    if record.identity is None:
        return record.problem
    if evidence is not None and evidence.runs and record.identity.run_id not in evidence.runs:
        return (
            f"{layout.RUN_FILE} is of {record.identity}, and no checkpoint here is: {identity.describe_runs(evidence)}"
        )
    return None


def repair_command(store: Store) -> str:
    """Return the command line that describes the problem in full and repairs it."""
    return f"hyperpod-kit checkpoint repair {store.url}"


def repair(args: argparse.Namespace) -> int:
    """Write RUN.json and lost manifests again; nothing to do is fine: 0. 1 when the newest that was committed is lost
    and cannot be rebuilt. Raises CheckpointError when the root does not agree with itself."""
    store = open_existing_root_as_owner(args)
    run = _repair_run_file(args, store)
    rebuilt = rebuild.rebuild_lost_manifests(store, run.identity, dry_run=args.dry_run)
    rebuilt_ids = {outcome.checkpoint_id for outcome in rebuilt if not outcome.reason}
    lost = [
        commit
        for commit in _lost_commits_newer_than_all_present(store, rebuilt_ids)
        if commit.checkpoint_id not in rebuilt_ids
    ]
    _print_repair_report(args, store, run, rebuilt, lost)
    if lost:
        return 1
    return 0


class RunRepair(NamedTuple):
    """What was done about RUN.json."""

    identity: RunIdentity
    problem: Optional[str]
    done: str


def _repair_run_file(args: argparse.Namespace, store: Store) -> RunRepair:
    record, evidence = identity.read_run_file(store), identity.collect_identity_evidence(store)
    problem = run_file_problem(store, record, evidence)
    chosen = _run_of_id_prefix_if_given(store, args.run_id, evidence)
    if chosen is None and problem is None and record.identity is not None:
        return RunRepair(record.identity, None, NOTHING)
    if chosen is None and record.identity is not None:
        raise CheckpointError(
            f"{store.url}: {problem}",
            hint=f"{repair_command(store)} --run-id ID  # of the run whose root "
            "it is; the checkpoints of others are then passed over",
        )
    target = chosen or identity.infer_identity(store)
    if target is None:
        raise CheckpointError(
            f"{store.url}: {problem}, and nothing says whose root it is: neither a manifest nor a start",
            hint="start the job: it makes a new one",
        )
    if record.identity == target:
        return RunRepair(target, None, NOTHING)
    if args.dry_run:
        return RunRepair(target, problem, "would be written")
    if record.exists:
        identity.remove_run_file(store)
    return RunRepair(identity.write_run_file_unless_valid(store, target), problem, WRITTEN)


def _lost_commits_newer_than_all_present(store: Store, rebuilt: Set[str]) -> List[LostCommit]:
    """What was committed and is lost, and is newer than all that is there or `rebuilt`. Raises CheckpointError,
    OSError."""
    names = [
        layout.parse_checkpoint_id(name) for name in (catalog.newest_committed(store), *rebuilt) if name is not None
    ]
    newest = max((catalog.sort_key(name) for name in names if name is not None), default=None)
    newer = []
    for lost in selection.lost_commits_assuming_no_manifests(store):
        name = layout.parse_checkpoint_id(lost.checkpoint_id)
        if newest is None or (name is not None and catalog.sort_key(name) > newest):
            newer.append(lost)
    return newer


def _run_of_id_prefix_if_given(store: Store, run_id_prefix: Optional[str], evidence: Evidence) -> Optional[RunIdentity]:
    if run_id_prefix is None:
        return None
    runs = {candidate_id: run for candidate_id, (run, _) in evidence.runs.items()}
    runs.update(
        {
            start.run_id: identity.fill_missing_run_name(start, store)
            for start in evidence.starts
            if start.run_id not in runs
        }
    )
    matching = [run for candidate_id, run in runs.items() if candidate_id.startswith(run_id_prefix)]
    if len(matching) != 1:
        raise CheckpointError(
            f"{len(matching)} runs of {store.url} have an id that begins with {run_id_prefix!r}, expected "
            f"1: {', '.join(sorted(map(str, runs.values()))) or 'nothing here says whose it is'}"
        )
    return matching[0]


def _print_repair_report(
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
                    "attempt": outcome.checkpoint_id,
                    "provable": not outcome.reason,
                    "written": not (outcome.reason or args.dry_run),
                    "why": outcome.reason,
                }
                for outcome in rebuilt
            ],
            "lost": [{"attempt": commit.id_or_record_file, "why": commit.reason} for commit in lost],
        }
        terminal.print_json(body)
        return
    problem_text = ""
    if run.problem:
        problem_text = f" ({run.problem})"
    terminal.print_stdout(f"{layout.RUN_FILE} of {run.identity}: {run.done}{problem_text}")
    verb = "rebuilt"
    if args.dry_run:
        verb = "would be rebuilt"
    for outcome in rebuilt:
        shards = "1 shard"
        if outcome.world != 1:
            shards = f"{outcome.world} shards"
        if outcome.reason:
            terminal.print_stdout(f"{outcome.checkpoint_id}  not rebuilt: {outcome.reason}")
        else:
            terminal.print_stdout(f"{outcome.checkpoint_id}  {verb}: {format_byte_count(outcome.size)} in {shards}")
    for commit in lost:
        terminal.print_stdout(f"{commit.id_or_record_file}  LOST: {commit.reason}")
