"""`checkpoint repair`: RUN.json, written again from what every checkpoint says about its run, and manifests that were
lost, made again from files that prove themselves."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from hyperpod_kit.checkpoint.agent.reports import extra_state, name_coverage
from hyperpod_kit.checkpoint.commands.byte_counts import format_byte_count
from hyperpod_kit.checkpoint.commands.inspection import open_existing_root_as_owner
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import (
    coverage,
    digest,
    index,
    layout,
    manifest,
    rows,
    sealed_text,
    shard,
)
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord, Manifest
from hyperpod_kit.checkpoint.repository.read import hole_check, rank_extra_state, stream, verify
from hyperpod_kit.checkpoint.repository.records import catalog, commit_records, identity, latest
from hyperpod_kit.checkpoint.repository.records.catalog import CheckpointEntry
from hyperpod_kit.checkpoint.repository.records.commit_records import LostCommit
from hyperpod_kit.checkpoint.repository.records.identity import Evidence, RunFile, RunIdentity
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import counted

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
            f"{layout.RUN_FILE} is of {record.identity}, but none of the checkpoints is: "
            f"{identity.describe_runs(evidence)}"
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
    rebuilt = rebuild_lost_manifests(store, run.identity, dry_run=args.dry_run)
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
            hint=f"{repair_command(store)} --run-id ID  # the id of the run that owns the root; the checkpoints of "
            "other runs are then skipped",
        )
    target = chosen or identity.infer_identity(store)
    if target is None:
        raise CheckpointError(
            f"{store.url}: {problem}, and the owner of the root is unknown: no manifest and no start names it",
            hint=f"start the job: it writes a new {layout.RUN_FILE}",
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
            f"{len(matching)} runs of {store.url} have an id that begins with {run_id_prefix!r}, expected 1: "
            f"{', '.join(sorted(map(str, runs.values()))) or 'the owner of the root is unknown'}"
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
        terminal.print_json(document("checkpoint repair", body))
        return
    problem_text = ""
    if run.problem:
        problem_text = f" ({run.problem})"
    terminal.print_stdout(f"{layout.RUN_FILE} of {run.identity}: {run.done}{problem_text}")
    verb = "rebuilt"
    if args.dry_run:
        verb = "would be rebuilt"
    for outcome in rebuilt:
        if outcome.reason:
            terminal.print_stdout(f"{outcome.checkpoint_id}  not rebuilt: {outcome.reason}")
        else:
            terminal.print_stdout(
                f"{outcome.checkpoint_id}  {verb}: {format_byte_count(outcome.size)} in "
                f"{counted(outcome.world, 'shard')}"
            )
    for commit in lost:
        terminal.print_stdout(f"{commit.id_or_record_file}  LOST: {commit.reason}")


# A manifest that was lost, made again from files that prove themselves.
#
# A shard ends with the digests of its chunks, extra.json and index.bin have digests of their own, and each shard's
# header names run, rank, epoch, seq and step. So an attempt that is whole says all that its manifest said, but for what
# the scheduler and the versions of programs were; and one that lacks a file or has one wrong byte is found out.

_DCP = "dcp"
"""The plan of a checkpoint that torch's own planner has laid out: all its tensors count."""

_MAX_HEADER_BYTES = 1 << 30


class Rebuilt(NamedTuple):
    """What became of an attempt without a manifest. `reason`: it was not rebuilt, "" when it was, or would be."""

    checkpoint_id: str
    reason: str = ""
    size: int = 0
    world: int = 0


class _ProvedShard(NamedTuple):
    record: FileRecord
    meta: Dict[str, Any]
    tensors: Tuple[shard.Placed, ...]


def rebuild_lost_manifests(store: Store, run_identity: RunIdentity, *, dry_run: bool) -> List[Rebuilt]:
    """Rebuild the manifest of every attempt without one that may have been a commit, newest first, and write it
    unless `dry_run`; then write LATEST. Raise CheckpointError, OSError."""
    entries = catalog.list_checkpoints(store)
    outcomes: List[Rebuilt] = []
    for entry in _rebuild_candidates(store, entries):
        try:
            body = build_manifest_from_proved_files(store, entry.checkpoint_id, run_identity)
            if not dry_run:
                identity.require_run_identity(store, run_identity)
                store.create(f"{entry.checkpoint_id}/{layout.MANIFEST_FILE}", body.encode())
            outcomes.append(Rebuilt(entry.checkpoint_id, "", body.total_bytes, body.world))
        except FileExistsError:
            continue  # whoever was saving it has committed it just now
        except (CheckpointError, OSError) as err:
            outcomes.append(Rebuilt(entry.checkpoint_id, verify.describe_failure(err)))
    if not dry_run:
        _write_latest_if_newest_rebuilt(store, {outcome.checkpoint_id for outcome in outcomes if not outcome.reason})
    return outcomes


def _write_latest_if_newest_rebuilt(store: Store, rebuilt: Set[str]) -> None:
    """Write LATEST where the newest of all is one of these. A hint at a newer one, which is lost, stays: it
    proves that."""
    newest = catalog.newest_committed(store)
    name = None
    if newest is not None and newest in rebuilt:
        name = layout.parse_checkpoint_id(newest)
    hint = latest.read(store)
    if name is not None and (hint is None or catalog.sort_key(hint) < catalog.sort_key(name)):
        latest.try_write(store, str(name))


def _rebuild_candidates(store: Store, entries: Sequence[CheckpointEntry]) -> List[CheckpointEntry]:
    """Return the attempts without a manifest, but for one of the newest start that is newer than every known
    commit: that may be a save under way."""
    names = [
        layout.parse_checkpoint_id(record.checkpoint_id)
        for record in commit_records.collect_commit_evidence(store).records
    ]
    orders = [catalog.sort_key(name) for name in names if name is not None]
    orders += [entry.order for entry in entries if entry.committed]
    newest, epoch = max(orders, default=(0, 0, "")), catalog.highest_epoch_and_seq(store)[0]
    return [entry for entry in entries if not entry.committed and (entry.order <= newest or entry.name.epoch < epoch)]


def build_manifest_from_proved_files(store: Store, checkpoint_id: str, run_identity: RunIdentity) -> Manifest:
    """Return the manifest of a checkpoint every byte of which proves itself; write nothing. Raise
    CheckpointError, OSError."""
    name = layout.parse_checkpoint_id(checkpoint_id)
    assert name is not None
    present = store.sizes(checkpoint_id)
    for file in (layout.EXTRA_FILE, layout.INDEX_FILE):
        if file not in present:
            raise CheckpointError(f"{file} is missing")
    extra = hole_check.read_rejecting_holes(store, f"{checkpoint_id}/{layout.EXTRA_FILE}", layout.LARGEST_SMALL)
    world = _verified_world_size(extra, name)
    files = {layout.shard_file(rank) for rank in range(world)}
    _require_exact_shard_files(files, {file for file in present if file.startswith("shard-")})
    shards = [_verified_shard(store, checkpoint_id, rank, world, run_identity) for rank in range(world)]
    table = hole_check.read_rejecting_holes(store, f"{checkpoint_id}/{layout.INDEX_FILE}", layout.LARGEST_SMALL)
    names = _verified_tensor_names(shards, table)
    _require_rank_states_and_tensors(store, checkpoint_id, extra, world, names)
    saved = parse_json_object(extra, len(extra))["shared"].get("save") or {}
    return Manifest(
        run=run_identity.run,
        run_id=run_identity.run_id,
        epoch=name.epoch,
        seq=name.seq,
        step=name.step,
        world=world,
        plan=name_coverage.combine_plans([proved.meta["plan"] for proved in shards]),
        digest=shards[0].meta["digest"],
        chunk=shards[0].meta["chunk"],
        total_bytes=sum(proved.record.size for proved in shards),
        tensors=_count_tensors_as_commit_does(names, shards[0].meta["plan"]),
        time=_save_time_by_mtime_or_now(store, checkpoint_id),
        shards=tuple(proved.record for proved in shards),
        extra=FileRecord.of(layout.EXTRA_FILE, extra),
        index=FileRecord.of(layout.INDEX_FILE, table),
        parent=saved.get("parent"),
        line=saved.get("line"),
        metrics=manifest.decode_numbers(saved.get("metrics") or {}),
        job={"mesh": saved["mesh"]} if saved.get("mesh") else {},
        rebuilt=manifest.now(),
    )


def _verified_world_size(extra: bytes, name: layout.CheckpointId) -> int:
    sealed_text.require_intact_seal(extra, layout.EXTRA_FILE)
    body = parse_json_object(extra, len(extra))
    if body.get("attempt") != [name.epoch, name.seq, name.step]:
        raise CheckpointError(f"{layout.EXTRA_FILE} is of another attempt: {str(body.get('attempt'))[:80]}")
    return len(body["ranks"])


def _require_exact_shard_files(expected: Set[str], present: Set[str]) -> None:
    missing, unexpected = sorted(expected - present), sorted(present - expected)
    if missing:
        if len(missing) == 1:
            raise CheckpointError(f"{missing[0]} is missing")
        raise CheckpointError(f"{len(missing)} shards are missing")
    if unexpected:
        raise CheckpointError(f"{unexpected[0]} is of no rank of it: {counted(len(expected), 'rank')} saved it")


def _verified_shard(store: Store, checkpoint_id: str, rank: int, world: int, run_identity: RunIdentity) -> _ProvedShard:
    """Return a shard of which every byte was compared with its own digests. Raise CheckpointError, OSError."""
    file = layout.shard_file(rank)
    reader = store.open_read(f"{checkpoint_id}/{file}")
    try:
        size = reader.size
        meta = shard.parse(memoryview(_read_shard_head(reader, file)), size).meta
        record = _record_from_stored_digests(reader, file, meta, rank)
        shard_reader = stream.Shard(reader, size, record.root, name=file, chunk=meta["chunk"])
        head = shard_reader.read_verified(0, shard.head_size(memoryview(_read_exactly(reader, 0, 8, file))))
    finally:
        reader.close()
    parsed = shard.parse(memoryview(head), size)
    _require_meta_of_checkpoint_and_run(parsed.meta, checkpoint_id, rank, world, run_identity, file)
    verify.verify_shard_file(store, checkpoint_id, record, chunk=parsed.meta["chunk"])
    return _ProvedShard(record, parsed.meta, parsed.tensors)


def _read_shard_head(reader: Any, file: str) -> bytes:
    size = shard.head_size(memoryview(_read_exactly(reader, 0, 8, file)))
    if size > min(reader.size, _MAX_HEADER_BYTES):
        raise CheckpointError(f"{file} is not a shard: its header would have {size} bytes")
    return _read_exactly(reader, 0, size, file)


def _read_exactly(reader: Any, begin: int, end: int, file: str) -> bytes:
    data = bytearray(end - begin)
    view, done = memoryview(data), 0
    while done < len(data):
        count = reader.read_into(view[done:], begin + done)
        if count <= 0:
            raise CheckpointError(f"{file} ends at byte {begin + done}")
        done += count
    return bytes(data)


def _record_from_stored_digests(reader: Any, file: str, meta: Dict[str, Any], rank: int) -> FileRecord:
    """Return the record of a shard by the digests at the end of the file, whatever the bytes before them."""
    algorithm, chunk = meta.get("digest"), meta.get("chunk")
    if algorithm not in digest.NAMES or type(chunk) is not int or not 0 < chunk <= digest.CHUNK:
        raise CheckpointError(f"{file} has digests of kind {str(algorithm)[:40]!r} over {str(chunk)[:40]} bytes")
    try:
        data_end, _ = digest.split_size_into_data_and_leaf_count(reader.size, chunk)
    except ValueError as err:
        raise CheckpointError(f"{file}: {err}") from None
    leaves = _read_exactly(reader, data_end, reader.size, file)
    return FileRecord(file, reader.size, digest.root_digest(digest.algorithm(algorithm), leaves, reader.size), rank)


def _require_meta_of_checkpoint_and_run(
    meta: Dict[str, Any], checkpoint_id: str, rank: int, world: int, run_identity: RunIdentity, file: str
) -> None:
    name = layout.parse_checkpoint_id(checkpoint_id)
    assert name is not None
    numbers = {number: f"{getattr(name, number):020d}" for number in ("epoch", "seq", "step")}
    expected = {"run": run_identity.run_id, "rank": rank, "world": world, **numbers}
    for key, value in expected.items():
        if meta.get(key) != value:
            raise CheckpointError(f"{file} says {key} {str(meta.get(key))[:80]}, expected {value}")
    if not isinstance(meta.get("plan"), str):
        raise CheckpointError(f"{file} names no plan")


def _verified_tensor_names(shards: Sequence[_ProvedShard], table: bytes) -> Set[str]:
    """Return the names of all tensors, after verifying that the index and the headers agree, and have every item
    once. Raise CheckpointError."""
    digest_settings = {(proved.meta["digest"], proved.meta["chunk"]) for proved in shards}
    if len(digest_settings) > 1:
        raise CheckpointError("its shards have digests of several kinds")
    built = index.build({rank: proved.tensors for rank, proved in enumerate(shards)})
    coverage.require_full_coverage(built)
    indexed = rows.decode_index_file(table)
    if {piece for name in indexed for piece in indexed[name]} != set(built.pieces):
        raise CheckpointError(f"{layout.INDEX_FILE} is not of these shards")
    return {piece.spec.name for piece in built.pieces}


def _require_rank_states_and_tensors(
    store: Store, checkpoint_id: str, extra: bytes, world: int, names: Set[str]
) -> None:
    """Raise CheckpointError unless each rank's extra state in its shard can be read, and each tensor that the
    trees name is in a shard."""
    for rank, part in enumerate(extra_state.split_shared_and_rank_parts(extra, world)[1]):
        if part.location is not None:
            rank_extra_state.read(store, checkpoint_id, rank, part.location)
    missing = sorted(set(name_coverage.shared_names(extra_state.merge_stage_trees(extra))) - names)
    if missing:
        raise CheckpointError(f"{missing[0]} is in no shard")


def _count_tensors_as_commit_does(names: Set[str], plan: str) -> int:
    """Return the number of tensors as a commit counts them: what is one rank's alone is not among them."""
    if plan == _DCP:
        return len(names)
    return sum(not name.startswith(name_coverage.RANK_PREFIX) for name in names)


def _save_time_by_mtime_or_now(store: Store, checkpoint_id: str) -> str:
    """Return when it was saved, as far as storage knows: policies go by it."""
    if is_path(store.url):
        with contextlib.suppress(OSError):
            changed = os.stat(os.path.join(store.url, checkpoint_id, layout.EXTRA_FILE)).st_mtime
            return manifest.format_time(changed)
    return manifest.now()
