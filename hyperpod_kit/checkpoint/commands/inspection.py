"""`checkpoint ls`, `show` and `verify`: what is there, and whether it is what was committed."""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any, Dict, List, Optional, Tuple

from hyperpod_kit.checkpoint.commands.byte_counts import format_byte_count
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog, commit_records, identity, lease, pins, proofs, tombstone
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.owners import open_as_owner
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.tables import Column, format_rows
from hyperpod_kit.errors import Absent, CheckpointError, DigestUnavailable, UsageError
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import clean_one_line, counted


def open_existing_root_as_owner(args: argparse.Namespace) -> Store:
    """Return the store of the root that was named, with its owner's rights. Raise Absent when there is none: its
    mount may be gone, so nothing was checked."""
    store = open_as_owner(args.root)
    if not store.exists(layout.RUN_FILE) and not any(map(layout.is_root_entry, store.list())):
        raise Absent(f"{store.url} has no {layout.RUN_FILE}: it is not a checkpoint root, or its mount is gone")
    return store


def ls(args: argparse.Namespace) -> int:
    """Print the checkpoints, newest first."""
    if args.limit < 0:
        raise UsageError(f"--limit {args.limit}: expected 0 (all) or the number of newest checkpoints")
    store = open_existing_root_as_owner(args)
    pinned, leased, proved = (
        pins.pinned_checkpoints(store),
        lease.leased_checkpoints(store),
        proofs.proved_checkpoints(store),
    )
    limit = args.limit or None
    rows = [
        _read_ls_row(store, entry, pinned, leased, proved)
        for entry in itertools.islice(catalog.iter_checkpoints_newest_first(store), limit)
    ]
    problem = identity.read_run_file(store).problem
    lost = _lost_commits_if_none_committed(store, rows)
    for row in rows:
        row["problem"] = next(
            (commit.reason for commit in lost if commit.checkpoint_id == row["attempt"]), row["problem"]
        )
    if args.json:
        terminal.print_json(
            document(
                "checkpoint ls",
                {
                    "root": store.url,
                    "run_problem": problem or None,
                    "lost": [{"attempt": commit.id_or_record_file, "why": commit.reason} for commit in lost],
                    "attempts": rows,
                },
            )
        )
        return 0
    if problem:
        terminal.print_stdout(_run_file_problem_and_repair_line(store, problem))
    for name, reason in commit_records.summarize_lost_commits([commit for commit in lost if not commit.has_directory]):
        terminal.print_stdout(f"{name}: {reason}")
    if lost:
        terminal.print_stdout(f"the committed checkpoints are lost: {commit_records.repair_hint(store.url)}")
    if not rows:
        if not lost:
            terminal.print_stdout(f"no checkpoint below {store.url}")
        return 0
    terminal.print_stdout(format_rows(_LISTED_COLUMNS, [_listed_cells(row) for row in rows]))
    if limit is not None and len(rows) == limit:
        terminal.print_stdout(f"the newest {limit}; all with --limit 0")
    return 0


_LISTED_COLUMNS = (
    "CHECKPOINT",
    Column("STEP", is_number=True),
    Column("SIZE", is_number=True),
    Column("RANKS", is_number=True, may_miss=True),
    Column("TIME", may_miss=True),
    Column("NOTE", folds=True),
)


def _listed_cells(row: Dict[str, Any]) -> Tuple[str, ...]:
    """Return the cells of one line of `ls`."""
    total_bytes, world = "", ""
    if row["bytes"] is not None:
        total_bytes = format_byte_count(row["bytes"])
    if row["world"] is not None:
        world = str(row["world"])
    return row["attempt"], str(row["step"]), total_bytes, world, row["time"] or "", _ls_note_cell(row)


def _lost_commits_if_none_committed(store: Store, rows: List[Dict[str, Any]]) -> List[commit_records.LostCommit]:
    """Return what was committed and has no manifest any more, where nothing in the root is committed. Raise
    CheckpointError, OSError."""
    if any(row["committed"] for row in rows) or catalog.newest_committed(store) is not None:
        return []
    return selection.lost_commits_assuming_no_manifests(store)


def _run_file_problem_and_repair_line(store: Store, problem: str) -> str:
    return f"{problem}: hyperpod-kit checkpoint repair {store.url}"


def _read_ls_row(store: Store, entry: catalog.CheckpointEntry, pinned: Any, leased: Any, proved: Any) -> Dict[str, Any]:
    body = None
    problem: Optional[str] = "never committed"
    if entry.committed:
        problem = None
        try:
            body = verify.read_manifest(store, entry.checkpoint_id)
        except (CheckpointError, OSError) as err:
            problem = verify.describe_failure(err)
        except Exception as err:  # of one checkpoint; the others are listed
            problem = verify.describe_unforeseen(err)
    damaged = None
    if entry.marked:
        damaged = tombstone.read_damage_reason(store, entry.checkpoint_id)
    return {
        "attempt": entry.checkpoint_id,
        "epoch": entry.name.epoch,
        "seq": entry.name.seq,
        "step": entry.name.step,
        "committed": entry.committed,
        "problem": problem,
        **_row_fields_from_manifest(body),
        "pinned": entry.checkpoint_id in pinned,
        "being_read": entry.checkpoint_id in leased,
        "proved": entry.checkpoint_id in proved,
        "damaged": damaged,
    }


def _row_fields_from_manifest(body: Optional[manifest.Manifest]) -> Dict[str, Any]:
    """Return the fields of a row that come from its manifest, empty ones where it could not be read."""
    if body is None:
        return {"time": None, "bytes": None, "world": None, "digest": None, "metrics": {}}
    return {
        "time": body.time,
        "bytes": body.total_bytes,
        "world": body.world,
        "digest": body.digest,
        "metrics": {name: manifest.encode_number(value) for name, value in body.metrics.items()},
    }


def _ls_note_cell(row: Dict[str, Any]) -> str:
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
    """Print one checkpoint: its manifest, its files, and with --tensors where each tensor lies."""
    store = open_existing_root_as_owner(args)
    checkpoint_id = args.attempt or newest_committed_checkpoint_id(store)
    pins.require_committed(store, checkpoint_id)
    body = verify.read_manifest(store, checkpoint_id)
    tensors = _tensor_rows_if_requested(store, checkpoint_id, args.tensors)
    if args.json:
        manifest_value = json.loads(body.encode())
        fields: Dict[str, Any] = {"root": store.url, "attempt": checkpoint_id, "manifest": manifest_value}
        if args.tensors:
            fields["tensors"] = tensors
        terminal.print_json(document("checkpoint show", fields))
        return 0
    facts = {
        "checkpoint": checkpoint_id,
        "run": f"{body.run} ({body.run_id})",
        "step": body.step,
        "time": body.time,
        "epoch, seq": f"{body.epoch}, {body.seq}",
        "size": f"{format_byte_count(body.total_bytes)} in {counted(body.world, 'shard')}",
        "tensors": body.tensors,
        "digest": f"{body.digest}, chunks of {format_byte_count(body.chunk)}",
        "rebuilt": body.rebuilt,
        "saved after": body.parent and f"seq {body.parent.get('seq')}, step {body.parent.get('step')}",
    }
    for kind, values in (("metric", body.metrics), ("job", body.job), ("version", body.versions)):
        facts.update({f"{kind} {name}": value for name, value in sorted(values.items())})
    for name, value in facts.items():
        if value is not None:
            terminal.print_stdout(f"{clean_one_line(name):<16} {clean_one_line(value, terminal.LONGEST_LINE)}")
    files = [*body.shards, body.extra]
    if body.index:
        files.append(body.index)
    terminal.print_stdout(
        "\n"
        + format_rows(
            ("FILE", Column("SIZE", is_number=True), "ROOT"),
            [(record.file, format_byte_count(record.size), record.root) for record in files],
        )
    )
    if args.tensors:
        terminal.print_stdout(
            "\n"
            + format_rows(
                ("TENSOR", "TYPE", "SHAPE", Column("SHARDS", folds=True)),
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


def _tensor_rows_if_requested(store: Store, checkpoint_id: str, is_requested: bool) -> List[Dict[str, Any]]:
    if not is_requested:
        return []
    body = verify.read_manifest(store, checkpoint_id)
    if body.index is None:
        raise CheckpointError(f"{checkpoint_id} has no tensor index")
    from hyperpod_kit.checkpoint.repository.format import rows

    pieces_by_name = rows.decode_index_file(verify.read_verified_small_file(store, checkpoint_id, body.index))
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
        for name, pieces in sorted(pieces_by_name.items())
    ]


def newest_committed_checkpoint_id(store: Store) -> str:
    """Return the newest committed checkpoint. Raise NoCheckpoint, NoValidCheckpoint when it is lost."""
    for entry in selection.iter_committed_not_excluded_newest_first(store):
        return entry.checkpoint_id
    raise selection.no_checkpoint_error(store, ())


def verify_checkpoints(args: argparse.Namespace) -> int:
    """Verify checkpoints and print the results: 0 all valid, 1 some are not, none is, or RUN.json is not valid."""
    store = open_existing_root_as_owner(args)
    for checkpoint_id in args.attempts:
        if layout.parse_checkpoint_id(checkpoint_id) is None:
            raise UsageError(
                f"{checkpoint_id} is not the name of a checkpoint", hint=f"hyperpod-kit checkpoint ls {store.url}"
            )
    checkpoint_ids = args.attempts or [
        entry.checkpoint_id for entry in selection.iter_committed_not_excluded_newest_first(store)
    ]
    run_record = identity.read_run_file(store)
    results: List[Dict[str, Any]] = []
    foreign = 0
    for checkpoint_id in checkpoint_ids:
        problem, is_foreign = _verify_checkpoint_recording_proof(store, checkpoint_id, run_record.identity)
        foreign += is_foreign
        results.append({"attempt": checkpoint_id, "valid": problem is None, "problem": problem})
        if not args.json:
            _print_verdict(checkpoint_id, problem)
    valid_ids = [row["attempt"] for row in results if row["valid"]]
    run_problem = run_record.problem
    if results and foreign == len(results):
        run_problem = f"{layout.RUN_FILE} is of {run_record.identity}, but none of the checkpoints is"
    if args.json:
        terminal.print_json(
            document(
                "checkpoint verify",
                {
                    "root": store.url,
                    "newest_valid": valid_ids[0] if valid_ids else None,
                    "run_problem": run_problem or None,
                    "attempts": results,
                },
            )
        )
    else:
        if not results:
            terminal.print_stdout(selection.no_checkpoint_error(store, ()).message)
        if run_problem:
            terminal.print_stdout(_run_file_problem_and_repair_line(store, run_problem))
    if valid_ids and len(valid_ids) == len(results) and not run_problem:
        return 0
    return 1


def _print_verdict(checkpoint_id: str, problem: Optional[str]) -> None:
    if problem is None:
        terminal.print_stdout(f"{checkpoint_id}  valid", flush=True)
    else:
        terminal.print_stdout(f"{checkpoint_id}  INVALID: {problem}", flush=True)


def _verify_checkpoint_recording_proof(
    store: Store, checkpoint_id: str, run_identity: Optional[identity.RunIdentity]
) -> Tuple[Optional[str], bool]:
    """Verify one checkpoint and record its proof where possible. Return (why it is invalid, whether only because
    it is another run's); None when every byte is as it was committed.

    Raise DigestUnavailable: that is no verdict.
    """
    try:
        body = verify.verify_checkpoint(store, checkpoint_id)
        proofs.record_proof_if_owner(store, checkpoint_id, "verify")
    except DigestUnavailable:
        raise
    except (CheckpointError, OSError) as err:
        return verify.describe_failure(err), False
    except Exception as err:  # of one checkpoint; the others are verified
        return verify.describe_unforeseen(err), False
    if run_identity is None or body.run_id == run_identity.run_id:
        return None, False
    return f"it is of {identity.RunIdentity(body.run, body.run_id)}, {layout.RUN_FILE} says {run_identity}", True
