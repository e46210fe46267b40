"""`hyperpod-kit checkpoint ls | verify | flush`: on any Python, without torch."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Dict, List, Sequence

from hyperpod_kit.errors import DigestUnavailable, HyperpodKitError

from . import arena, catalog, flush_users, verify


def _listing(root: str) -> List[catalog.Described]:
    os.listdir(root)  # a root that is not there is an error here, not an empty list
    return catalog.describe(root)


def _row(found: catalog.Described) -> Dict[str, Any]:
    entry, body, problem = found
    return {"attempt": entry.attempt, "epoch": entry.name.epoch, "seq": entry.name.seq, "step": entry.name.step,
            "committed": entry.committed, "problem": problem, "time": body.time if body else None,
            "bytes": body.total_bytes if body else None, "world": body.world if body else None,
            "digest": body.digest if body else None}


def _ls(args: argparse.Namespace) -> int:
    rows = [_row(found) for found in _listing(args.root)]
    if args.json:
        print(json.dumps({"root": args.root, "attempts": rows}))
        return 0
    for row in rows:
        size = f"{row['bytes'] / 1e6:,.1f} MB in {row['world']} shards, {row['time']}"
        size = size if row["bytes"] else row["problem"]
        print(f"{row['attempt']}  step {row['step']}  {size}")
    if not rows:
        print(f"no checkpoint under {args.root}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    """0 all valid, 1 some are not, 2 none is."""
    committed = [found.entry.attempt for found in _listing(args.root) if found.entry.committed]
    results = verify.problems_of(args.root, committed)
    if args.json:
        print(json.dumps({"root": args.root, "attempts": [{"attempt": a, "valid": p is None, "problem": p}
                                                           for a, p in results]}))
    else:
        for attempt, problem in results:
            print(f"{attempt}  {'valid' if problem is None else 'INVALID: ' + problem}")
        if not results:
            print(f"nothing was ever committed under {args.root}")
    good = sum(problem is None for _, problem in results)
    return 2 if not good else 0 if good == len(results) else 1


def _flush(args: argparse.Namespace) -> int:
    folder = arena.shm_dir()
    mine = os.getuid()
    found = []
    for uid in flush_users.uids(folder):
        if mine in (0, uid):
            found += flush_users.flush_as(uid, folder=folder, job=args.job, timeout=args.timeout,
                                          max_age=args.max_age * 3600.0)
    if args.json:
        print(json.dumps([outcome._asdict() for outcome in found]))
    else:
        for outcome in found:
            print(f"{outcome.run}: {outcome.note}; {'memory freed' if outcome.removed else 'left in ' + folder}")
    return 0 if all(outcome.removed for outcome in found) else 1


def _parser(also: Sequence[str]) -> argparse.ArgumentParser:
    epilog = f"with torch: {', '.join(also)}" if also else None
    parser = argparse.ArgumentParser(prog="hyperpod-kit checkpoint", description="Checkpoints of a run, without torch.",
                                     epilog=epilog)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, words in (("ls", _ls, "list a root's checkpoints, newest first; reads no data"),
                             ("verify", _verify, "verify every byte: 0 all valid, 1 some are not, 2 none is")):
        sub = commands.add_parser(name, help=words, description=words)
        sub.add_argument("root")
        sub.add_argument("--json", action="store_true")
        sub.set_defaults(run=run)
    words = "persist what dead trainers left in shared memory, then free it: 0 all freed, 1 something was left"
    sub = commands.add_parser("flush", help=words, description=words)
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("--job", help="only this Slurm job")
    which.add_argument("--all", action="store_true")
    sub.add_argument("--timeout", type=float, default=45.0, help="seconds per user")
    sub.add_argument("--max-age", type=float, default=24.0, help="hours after which what cannot be committed goes")
    sub.add_argument("--json", action="store_true")
    sub.set_defaults(run=_flush)
    return parser


def main(argv: List[str], also: Sequence[str] = ()) -> int:
    """Exit codes: 0 ok, 1 found something wrong, 2 usage (verify: nothing valid), 3 could not check.

    `also`: commands that the caller serves, for the help.
    """
    try:
        args = _parser(also).parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        return int(args.run(args))
    except HyperpodKitError as err:
        print(f"error: {err}" + (f"\nhint: {err.hint}" if err.hint else ""), file=sys.stderr)
        return err.exit_code
    except OSError as err:
        print(f"error: {err}", file=sys.stderr)
        return DigestUnavailable.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
