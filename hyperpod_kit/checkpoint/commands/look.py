"""`checkpoint ls`, `show` and `verify`: what is there, and whether it is what was committed."""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any, Dict, List, Optional, Tuple

from hyperpod_kit.checkpoint.commands.table import size, table
from hyperpod_kit.checkpoint.repository import (
    catalog,
    commit_records,
    identity,
    layout,
    lease,
    manifest,
    pins,
    proofs,
    selection,
    tombstone,
    verify,
)
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.owners import open_as_owner
from hyperpod_kit.errors import Absent, CheckpointError, DigestUnavailable, UsageError
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import clean


def open_root(args: argparse.Namespace) -> Store:
    """The root that was named, with its owner's rights. Raises Absent when there is none: its mount may be gone, so
    nothing was checked."""
    store = open_as_owner(args.root)
    if not store.exists(layout.RUN_FILE) and not any(map(layout.is_root_entry, store.list())):
        raise Absent(f"{store.url} has no {layout.RUN_FILE}: it is no checkpoint root, or its mount is gone")
    return store


def ls(args: argparse.Namespace) -> int:
    """The checkpoints, newest first."""
    if args.limit < 0:
        raise UsageError(f"--limit {args.limit}: expected 0 (all) or how many of the newest")
    store = open_root(args)
    pinned, leased, proved = pins.pinned(store), lease.leased_checkpoints(store), proofs.recorded(store)
    limit = args.limit or None
    rows = [
        _row(store, entry, pinned, leased, proved) for entry in itertools.islice(catalog.newest_first(store), limit)
    ]
    problem = identity.read_run_file(store).problem
    lost = [] if any(row["committed"] for row in rows) else _lost(store)
    for row in rows:
        row["problem"] = next((one.reason for one in lost if one.checkpoint_id == row["attempt"]), row["problem"])
    if args.json:
        terminal.data(
            {
                "root": store.url,
                "run_problem": problem or None,
                "lost": [{"attempt": one.name, "why": one.reason} for one in lost],
                "attempts": rows,
            }
        )
        return 0
    if problem:
        terminal.out(_run_line(store, problem))
    for name, why in commit_records.reasons([one for one in lost if not one.has_directory]):
        terminal.out(f"{name}: {why}")
    if lost:
        terminal.out(f"what was committed here is lost: {commit_records.hint(store.url)}")
    if not rows:
        if not lost:
            terminal.out(f"no checkpoint under {store.url}")
        return 0
    terminal.out(
        table(
            ("ATTEMPT", "STEP", "SIZE", "RANKS", "TIME", "NOTE"),
            [
                (
                    row["attempt"],
                    str(row["step"]),
                    "" if row["bytes"] is None else size(row["bytes"]),
                    "" if row["world"] is None else str(row["world"]),
                    row["time"] or "",
                    _note(row),
                )
                for row in rows
            ],
            right=(1, 2, 3),
        )
    )
    if limit is not None and len(rows) == limit:
        terminal.out(f"the newest {limit}; all with --limit 0")
    return 0


def _lost(store: Store) -> List[commit_records.LostCommit]:
    """What was committed under a root that has no manifest any more. Raises CheckpointError, OSError."""
    return [] if catalog.newest_committed(store) is not None else selection.lost_commits(store)


def _run_line(store: Store, problem: str) -> str:
    return f"{problem}: hyperpod-kit checkpoint repair {store.url}"


def _row(store: Store, entry: catalog.CheckpointEntry, pinned: Any, leased: Any, proved: Any) -> Dict[str, Any]:
    body, problem = None, None if entry.committed else "never committed"
    if entry.committed:
        try:
            body = verify.read_manifest(store, entry.attempt)
        except (CheckpointError, OSError) as err:
            problem = verify.describe_failure(err)
        except Exception as err:  # of one checkpoint; the others are listed
            problem = verify.describe_unforeseen(err)
    return {
        "attempt": entry.attempt,
        "epoch": entry.name.epoch,
        "seq": entry.name.seq,
        "step": entry.name.step,
        "committed": entry.committed,
        "problem": problem,
        "time": body.time if body else None,
        "bytes": body.total_bytes if body else None,
        "world": body.world if body else None,
        "digest": body.digest if body else None,
        "metrics": {name: manifest.number(value) for name, value in (body.metrics if body else {}).items()},
        "pinned": entry.attempt in pinned,
        "being_read": entry.attempt in leased,
        "proved": entry.attempt in proved,
        "damaged": tombstone.read(store, entry.attempt) if entry.marked else None,
    }


def _note(row: Dict[str, Any]) -> str:
    notes = [
        row["problem"],
        row["damaged"] and f"BAD: {row['damaged']}",
        row["pinned"] and "pinned",
        row["being_read"] and "being read",
        row["proved"] and "proved",
        *(f"{name} {float(value):g}" for name, value in row["metrics"].items()),
    ]
    return "; ".join(note for note in notes if note)


def show(args: argparse.Namespace) -> int:
    """One checkpoint: its manifest, its files, and with --tensors where each tensor lies."""
    store = open_root(args)
    attempt = args.attempt or newest(store)
    pins.require(store, attempt)
    body = verify.read_manifest(store, attempt)
    tensors = _tensors(store, attempt, args.tensors)
    if args.json:
        found = json.loads(body.encode())
        terminal.data(
            {"root": store.url, "attempt": attempt, "manifest": found, **({"tensors": tensors} if args.tensors else {})}
        )
        return 0
    facts = {
        "attempt": attempt,
        "run": f"{body.run} ({body.run_id})",
        "step": body.step,
        "time": body.time,
        "epoch, seq": f"{body.epoch}, {body.seq}",
        "size": f"{size(body.total_bytes)} in {body.world} shards",
        "tensors": body.tensors,
        "digest": f"{body.digest}, chunks of {size(body.chunk)}",
        "rebuilt": body.rebuilt,
        "saved after": body.parent and f"seq {body.parent.get('seq')}, step {body.parent.get('step')}",
    }
    for kind, values in (("metric", body.metrics), ("job", body.job), ("version", body.versions)):
        facts.update({f"{kind} {name}": value for name, value in sorted(values.items())})
    for name, value in facts.items():
        if value is not None:
            terminal.out(f"{clean(name):<16} {clean(value, terminal.LONGEST_LINE)}")
    files = [*body.shards, body.extra, *([body.index] if body.index else [])]
    terminal.out(
        "\n"
        + table(("FILE", "SIZE", "ROOT"), [(found.file, size(found.size), found.root) for found in files], right=(1,))
    )
    if args.tensors:
        terminal.out(
            "\n"
            + table(
                ("TENSOR", "TYPE", "SHAPE", "SHARDS"),
                [
                    (
                        row["name"],
                        row["dtype"],
                        str(row["shape"]),
                        ", ".join(str(piece["shard"]) for piece in row["pieces"]),
                    )
                    for row in tensors
                ],
            )
        )
    return 0


def _tensors(store: Store, attempt: str, wanted: bool) -> List[Dict[str, Any]]:
    if not wanted:
        return []
    body = verify.read_manifest(store, attempt)
    if body.index is None:
        raise CheckpointError(f"{attempt} has no index of its tensors")
    from hyperpod_kit.checkpoint.repository import rows

    found = rows.read(verify.read_extra(store, attempt, body.index))
    return [
        {
            "name": name,
            "dtype": pieces[0].spec.dtype,
            "shape": list(pieces[0].spec.full_shape),
            "pieces": [
                {
                    "shard": piece.shard,
                    "begin": piece.begin,
                    "shape": list(piece.spec.shape),
                    "offsets": list(piece.spec.offsets or (0,) * len(piece.spec.shape)),
                }
                for piece in pieces
            ],
        }
        for name, pieces in sorted(found.items())
    ]


def newest(store: Store) -> str:
    """The newest committed attempt. Raises NoCheckpoint, NoValidCheckpoint when it is lost."""
    for entry in selection.walk(store):
        return entry.attempt
    raise selection.no_checkpoint_error(store, ())


def check(args: argparse.Namespace) -> int:
    """0 all valid, 1 some are not, none is, or RUN.json is not whole."""
    store = open_root(args)
    for attempt in args.attempts:
        if layout.parse_checkpoint_id(attempt) is None:
            raise UsageError(f"{attempt} is no name of a checkpoint", hint=f"hyperpod-kit checkpoint ls {store.url}")
    wanted = args.attempts or [entry.attempt for entry in selection.walk(store)]
    found = identity.read_run_file(store)
    results: List[Dict[str, Any]] = []
    strangers = 0
    for attempt in wanted:
        problem, strange = _problem(store, attempt, found.identity)
        strangers += strange
        results.append({"attempt": attempt, "valid": problem is None, "problem": problem})
        if not args.json:
            terminal.out(f"{attempt}  {'valid' if problem is None else 'INVALID: ' + problem}", flush=True)
    good = [row["attempt"] for row in results if row["valid"]]
    run_problem = found.problem
    if results and strangers == len(results):
        run_problem = f"{layout.RUN_FILE} is of {found.identity}, and no checkpoint here is"
    if args.json:
        terminal.data(
            {
                "root": store.url,
                "newest_valid": good[0] if good else None,
                "run_problem": run_problem or None,
                "attempts": results,
            }
        )
    else:
        if not results:
            terminal.out(selection.no_checkpoint_error(store, ()).message)
        if run_problem:
            terminal.out(_run_line(store, run_problem))
    return 0 if good and len(good) == len(results) and not run_problem else 1


def _problem(store: Store, attempt: str, whose: Optional[identity.RunIdentity]) -> Tuple[Optional[str], bool]:
    """(why it is invalid, whether only because it is another run's); None when every byte is as it was committed.

    Raises DigestUnavailable: that is no verdict.
    """
    try:
        body = verify.verify_checkpoint(store, attempt)
        proofs.record_where_possible(store, attempt, "verify")
    except DigestUnavailable:
        raise
    except (CheckpointError, OSError) as err:
        return verify.describe_failure(err), False
    except Exception as err:  # of one checkpoint; the others are verified
        return verify.describe_unforeseen(err), False
    if whose is None or body.run_id == whose.run_id:
        return None, False
    return f"it is of {identity.RunIdentity(body.run, body.run_id)}, {layout.RUN_FILE} says {whose}", True
