"""`checkpoint prune`, `pin` and `unpin`: what stays."""

from __future__ import annotations

import argparse
from typing import Dict, List, Tuple

from hyperpod_kit.checkpoint.commands.inspection import open_existing_root_as_owner
from hyperpod_kit.checkpoint.repository import read_back, retention
from hyperpod_kit.checkpoint.repository.policy import Best, EverySeconds, EverySteps, Latest, Policy
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import identity, pins
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.specs import OptionSpec
from hyperpod_kit.command_line.tables import Column, format_rows
from hyperpod_kit.errors import CheckpointError, UsageError
from hyperpod_kit.untrusted import terminal

RETENTION_OPTIONS = (
    OptionSpec("--latest", "Keep the newest N.", "N", int),
    OptionSpec("--every-steps", "Keep the first one at or after every N steps.", "N", int),
    OptionSpec("--every-seconds", "Keep the first one in every S seconds.", "S", float),
    OptionSpec("--best", "Keep the N best; default: 1, min.", "METRIC[:N[:min|max]]", is_repeated=True),
)
"""The options that `retention_policy_of_options` reads."""


def retention_policy_of_options(args: argparse.Namespace) -> Policy:
    """Return the policy of the options together: a checkpoint that one of them keeps stays. Raise UsageError."""
    parts: List[Policy] = []
    if args.latest is not None:
        parts.append(Latest(args.latest))
    if args.every_steps is not None:
        parts.append(EverySteps(args.every_steps))
    if args.every_seconds is not None:
        parts.append(EverySeconds(args.every_seconds))
    for text in args.best:
        fields = text.split(":")
        if len(fields) > 3 or not fields[0] or not (fields[1:2] or ["1"])[0].isdigit():
            raise UsageError(f"--best {text!r}: expected METRIC[:N[:min|max]]")
        parts.append(Best(fields[0], int((fields[1:2] or ["1"])[0]), (fields[2:3] or ["min"])[0]))
    if not parts:
        raise UsageError("prune needs a policy", hint="hyperpod-kit checkpoint prune ROOT --latest 3 --dry-run")
    rule = parts[0]
    for part in parts[1:]:
        rule = rule | part
    return rule


def _is_every_byte_intact(store: Store, checkpoint_id: str) -> bool:
    try:
        verify.verify_checkpoint(store, checkpoint_id)
        return True
    except (CheckpointError, OSError):
        return False


def prune(args: argparse.Namespace) -> int:
    """Delete what the policy does not keep: 0 done, 1 something was left, or was read back and found to be damaged."""
    rule = retention_policy_of_options(args)
    store = open_existing_root_as_owner(args)
    run_identity = identity.read_or_infer_identity(store)
    run_id = ""
    if run_identity:
        run_id = run_identity.run_id
    sound = None
    if args.verify:
        sound = _is_every_byte_intact
    items = retention.judge_all_checkpoints(store, run_id=run_id, is_complete=sound)
    planned, applied = retention.plan(items, rule), retention.Applied((), ())
    damaged: Tuple[Tuple[str, str], ...] = ()
    if not args.dry_run:
        planned, _, damaged = retention.prove_and_plan(items, read_back.Prover(store, by="prune"), rule)
        for checkpoint_id, reason in damaged:
            terminal.print_stderr(f"{checkpoint_id} was read back and differs from what was committed: {reason}")
        applied = retention.delete_planned(store, planned, run_identity)
    if args.json:
        terminal.print_json(
            document(
                "checkpoint prune",
                {
                    "root": store.url,
                    "policy": rule.to_json(),
                    "dry_run": args.dry_run,
                    "keep": dict(planned.keep),
                    "delete": dict(planned.delete),
                    "deleted": list(applied.deleted),
                    "left": dict(applied.remaining),
                    "damaged": dict(damaged),
                },
            )
        )
    else:
        rows = _fate_rows(planned, dict(applied.remaining), dry_run=args.dry_run)
        if rows:
            terminal.print_stdout(format_rows(("CHECKPOINT", "FATE", Column("WHY", folds=True)), rows))
        else:
            terminal.print_stdout(f"no checkpoint below {store.url}")
    if applied.remaining or damaged:
        return 1
    return 0


def _fate_rows(
    planned: retention.RetentionPlan, not_deleted: Dict[str, str], *, dry_run: bool
) -> List[Tuple[str, str, str]]:
    """List what becomes of each checkpoint and why, the newest first."""
    rows = [(checkpoint_id, "keep", reason) for checkpoint_id, reason in planned.keep]
    for checkpoint_id, reason in planned.delete:
        fate = "deleted"
        if dry_run:
            fate = "would delete"
        elif checkpoint_id in not_deleted:
            fate = "left"
        rows.append((checkpoint_id, fate, not_deleted.get(checkpoint_id, reason)))
    return sorted(rows, reverse=True)


def pin(args: argparse.Namespace) -> int:
    """Pin a checkpoint, which keeps it under every policy."""
    pins.pin(open_existing_root_as_owner(args), args.attempt, args.reason)
    terminal.print_stdout(f"{args.attempt} is pinned")
    return 0


def unpin(args: argparse.Namespace) -> int:
    """Remove the pin of a checkpoint, which leaves it to the policy again."""
    pins.unpin(open_existing_root_as_owner(args), args.attempt)
    terminal.print_stdout(f"{args.attempt} is no longer pinned")
    return 0
