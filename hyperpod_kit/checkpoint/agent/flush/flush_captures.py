"""The captures of one run on this node, brought to storage: the newest first, all ranks of one at a time.

Each shard is written close behind its sealing, as agents do it, and nothing is waited for but storage.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.agent.flush.flush_progress import FlushProgress
from hyperpod_kit.checkpoint.agent.persist import persist, seal
from hyperpod_kit.checkpoint.agent.persist.seal import SlotShard
from hyperpod_kit.checkpoint.agent.reports import assemble, replicas, report_texts, shard_report
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report, ShardReport
from hyperpod_kit.checkpoint.agent.shm import control_page
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page
from hyperpod_kit.checkpoint.agent.shm.shm_slots import OpenSlot
from hyperpod_kit.checkpoint.repository import commit, selection
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.base import SMALL, Store
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.version import version

Captured = Mapping[Key, Mapping[int, OpenSlot]]
"""Rank -> the slot that holds its part, of each capture."""


class Saved(NamedTuple):
    """The newest attempt that was committed, what happened, whether nothing here is needed any more, and what then is
    lost although it was whole, "" for nothing."""

    checkpoint_id: Optional[str]
    note: str
    done: bool
    lost: str = ""


def describe_steps(pages: Iterable[Page]) -> str:
    """Which captures these are, for people; the newest first."""
    steps = {page.key: page.step for page in pages}
    return ", ".join(f"step {steps[key]} (seq {key[1]})" for key in sorted(steps, reverse=True))


def open_storage_and_find_newest_epoch_seq(page: Page) -> Tuple[Store, Tuple[int, int]]:
    """Return the store of the root that a capture belongs to, and (epoch, seq) of its newest commit.

    Raises CheckpointError when the root is not its run's, OSError.
    """
    store = open_store(page.origin.root)
    identity.require_run_identity(store, identity.RunIdentity(page.origin.run, page.origin.run_id))
    return store, _newest_committed_epoch_seq(store)


def _newest_committed_epoch_seq(store: Store) -> Tuple[int, int]:
    """(epoch, seq) of the newest commit; one whose manifest is torn or whose files are not all there, with their
    sizes, is none."""
    for entry in selection.iter_committed_not_excluded_newest_first(store):
        try:
            checkpoint_manifest = verify.read_manifest(store, entry.checkpoint_id)
            sizes = store.sizes(entry.checkpoint_id)
            if all(
                sizes.get(record.file) == record.size
                for record in (*checkpoint_manifest.shards, checkpoint_manifest.extra)
            ):
                return entry.name.epoch, entry.name.seq
        except (CheckpointError, FileNotFoundError):
            continue
    return 0, 0


def newer_captures(pages: Iterable[Page], committed: Tuple[int, int]) -> List[Key]:
    """Return the keys of the captures that are newer than what storage has, newest first. Those for memory are
    saved only where no newer one is, see `save`."""
    return sorted({page.key for page in pages if page.key[:2] > committed}, reverse=True)


def save(run: str, captured: Captured, pages: Sequence[Page], progress: FlushProgress) -> Saved:
    """Save a run's captures that are newer than what its root has, newest first, and return what became of
    them.

    `pages`: of all slots, for which ranks of a start live on this node. Raises CheckpointError, OSError
    when storage does not take it: what was not written yet is then needed.
    """
    first = next(iter(captured[max(captured)].values())).page
    store, committed = open_storage_and_find_newest_epoch_seq(first)
    keys = newer_captures((slot.page for slots in captured.values() for slot in slots.values()), committed)
    if not keys:
        return Saved(None, f"already committed up to seq {committed[1]}", True)
    checkpoint_ids: List[str] = []
    notes: List[str] = []
    unsealed: List[Key] = []
    for key in keys:
        if checkpoint_ids and next(iter(captured[key].values())).page.is_memory_only:
            continue
        progress.set_next_capture(run, key[0], key[1], next(iter(captured[key].values())).page.step)
        try:
            checkpoint_id, note = _commit_or_hand_in_capture(run, store, captured[key], pages, progress)
        except NotSealed as err:
            checkpoint_id, note = None, f"seq {key[1]}: {err}"
            unsealed.append(key)
        notes.append(note)
        checkpoint_ids += [checkpoint_id] if checkpoint_id else []
    # Where none can be sealed it may be this interpreter that cannot.
    done = len(unsealed) < len(keys)
    lost = ""
    if done:
        lost = describe_steps(next(iter(captured[key].values())).page for key in unsealed)
    return Saved(checkpoint_ids[0] if checkpoint_ids else None, "; ".join(notes), done, lost)


def _commit_or_hand_in_capture(
    run: str, store: Store, slots: Mapping[int, OpenSlot], pages: Sequence[Page], progress: FlushProgress
) -> Tuple[Optional[str], str]:
    """(the attempt, where it is committed; what happened). Raises OSError, CheckpointError when storage does not take
    it; a capture that cannot be saved at all is told of."""
    page = next(iter(slots.values())).page
    seq, world = page.seq, page.origin.world
    if (
        replicas.find_difference({rank: replicas.digests_by_holders_in_slot(slot.slot) for rank, slot in slots.items()})
        is not None
    ):
        return None, f"seq {seq}: its ranks differ in tensors that they hold alike"
    local_ranks = {other.origin.rank for other in pages if other.epoch == page.epoch}
    is_complete = sorted(slots) == list(range(world))
    if not is_complete and (len(local_ranks) == world or set(slots) != local_ranks):
        return None, f"seq {seq} was never complete"
    options = progress.write_options_counting_bytes(run)
    if is_complete:
        checkpoint_id = page.checkpoint_id(secrets.token_hex(3))
        records = seal_and_write_all(
            slots, lambda rank, shard: persist.write_shard(shard, store, checkpoint_id, options)
        )
        reports = {rank: shard_report.report_of(slots[rank].slot, record) for rank, record in records.items()}
        assembled = assemble.build_commit_files(reports, {"hyperpod_kit": version(), "writer": "flush"})
        commit.commit(store, checkpoint_id, assembled.manifest, assembled.extra, assembled.index_bytes)
        return checkpoint_id, f"committed {checkpoint_id}"
    if write_shards_and_try_commit(store, slots, options):
        checkpoint_id = shared_flush_checkpoint_id(page)
        return checkpoint_id, f"committed {checkpoint_id}"
    return None, f"seq {seq}: handed in ranks {sorted(local_ranks)} of {world}"


# A commit without agents: each node hands in its shards, and whoever finds that all are there commits.
#
# For `flush` after the end of a job whose last captures are spread over nodes that cannot talk to each other any
# more. Beside its shards a node leaves a report per rank; the attempt's name follows from the capture, so all nodes
# use one.

SealedSlots = Mapping[int, OpenSlot]
"""Rank -> its sealed slot and page; all of one capture."""


def shared_flush_checkpoint_id(page: Page) -> str:
    """The attempt that all nodes hand this capture in to; never the one that the agents were writing."""
    nonce = hashlib.blake2b(f"flush {page.origin.incarnation}".encode(), digest_size=3).hexdigest()
    return page.checkpoint_id(nonce)


def write_shards_and_try_commit(
    store: Store, slots: SealedSlots, options: Optional[persist.WriteOptions] = None
) -> bool:
    """Write this node's shards and their reports; True when the capture is committed with them.

    A node that comes later may still commit it, so the memory is not needed any more in either case. A shard without a
    report was left by a flush that was killed, and is written anew. Raises CheckpointError (NotSealed when it is what
    lies here that cannot be sealed), OSError.
    """
    page = next(iter(slots.values())).page
    checkpoint_id = shared_flush_checkpoint_id(page)

    def write(rank: int, shard: seal.SlotShard) -> manifest.FileRecord:
        try:
            return persist.write_shard(shard, store, checkpoint_id, options)
        except FileExistsError:
            store.delete(f"{checkpoint_id}/{layout.shard_file(rank)}")
            return persist.write_shard(shard, store, checkpoint_id, options)

    unreported = {
        rank: slot for rank, slot in slots.items() if not store.exists(f"{checkpoint_id}/{layout.report_file(rank)}")
    }
    for rank, record in sorted(seal_and_write_all(unreported, write).items()):
        failpoint("handed.before_report")
        write_report(store, checkpoint_id, rank, shard_report.report_of(unreported[rank].slot, record))
    failpoint("handed.before_commit")
    return _commit_if_complete(store, checkpoint_id, page.origin.world)


def _commit_if_complete(store: Store, checkpoint_id: str, world: int) -> bool:
    """Commit when every rank has handed in. Two nodes may do this at once: they write the same, and one is first."""
    reports = read_reports(store, checkpoint_id, world)
    if reports is None:
        return False
    assembled = assemble.build_commit_files(reports, {"hyperpod_kit": version(), "writer": "flush"})
    for name, data in ((layout.EXTRA_FILE, assembled.extra), (layout.INDEX_FILE, assembled.index_bytes)):
        with contextlib.suppress(FileExistsError):
            store.create(f"{checkpoint_id}/{name}", data)
        if store.read(f"{checkpoint_id}/{name}", max(SMALL, len(data))) != data:
            raise CheckpointError(f"{name} of {checkpoint_id} is not what the ranks handed in")
    identity.require_run_identity(store, identity.RunIdentity(assembled.manifest.run, assembled.manifest.run_id))
    store.sync(checkpoint_id)
    with contextlib.suppress(FileExistsError):
        store.create(f"{checkpoint_id}/{layout.MANIFEST_FILE}", assembled.manifest.encode())
    return True


# The reports of a commit without agents: one small file a rank, and each text that ranks have alike once.
#
# Names of a model's tensors are 700 kB a rank and the same on thousands. A report names them by their digests, as
# agents tell it (see report_texts); beside it lies the text itself, in a file that has the digest in its name.


def write_report(store: Store, checkpoint_id: str, rank: int, report: Report) -> None:
    """Hand in the report of a rank, its texts first. Raises CheckpointError when it is not about what was captured,
    FileExistsError when the rank has handed in, OSError."""
    teller = report_texts.ReportEncoder()
    body = teller.encode(report)
    for text_digest in report_texts.digests_of_omitted_texts(body):
        _create_text_replacing_torn(
            store,
            f"{checkpoint_id}/{layout.report_text_file(text_digest)}",
            (teller.look_up_text_and_inline_from_now(text_digest) or "").encode(),
        )
    store.create(f"{checkpoint_id}/{layout.report_file(rank)}", manifest.seal_json(body))


def _create_text_replacing_torn(store: Store, name: str, text: bytes) -> None:
    try:
        store.create(name, text)
    except FileExistsError:
        if store.read(name, layout.LARGEST_REPORT) != text:
            # Torn: of a node that was killed. Whoever still writes it writes the same.
            store.delete(name)
            store.create(name, text)


def read_reports(store: Store, checkpoint_id: str, world: int) -> Optional[Dict[int, ShardReport]]:
    """All ranks' reports; None while one has not handed in, and then none is read.

    Raises CheckpointError when one is damaged or is none, OSError.
    """
    present_names = set(store.list(checkpoint_id))
    if not all(layout.report_file(rank) in present_names for rank in range(world)):
        return None
    texts = report_texts.ReportDecoder()
    complete_reports: Dict[int, ShardReport] = {}
    for rank in range(world):
        name = layout.report_file(rank)
        body = manifest.parse_sealed_json(store.read(f"{checkpoint_id}/{name}", layout.LARGEST_REPORT), name)
        try:
            updates = [texts.add_report(rank, control_page.parse_page(dict(body["page"])).key, body)]
            for text_digest in [request.digest for request in updates[0].requests]:
                updates.append(
                    _read_text_into_decoder(store, checkpoint_id, texts, updates[0].requests[0], text_digest)
                )
        except (TypeError, KeyError, ValueError) as err:
            raise CheckpointError(f"{name} lacks a field: {err}") from None
        _collect_complete_or_raise(updates, complete_reports)
    return complete_reports


def _read_text_into_decoder(
    store: Store,
    checkpoint_id: str,
    texts: report_texts.ReportDecoder,
    request: report_texts.TextRequest,
    text_digest: str,
) -> report_texts.ReportUpdate:
    data = store.read(f"{checkpoint_id}/{layout.report_text_file(text_digest)}", layout.LARGEST_REPORT)
    return texts.add_text(request.rank, request.key, text_digest, data.decode("utf-8", "replace"))


def _collect_complete_or_raise(
    updates: List[report_texts.ReportUpdate], complete_reports: Dict[int, ShardReport]
) -> None:
    for update in updates:
        for rank, _, failure in update.failed:
            raise CheckpointError(f"{layout.report_file(rank)}: a text of it is damaged: {failure}")
        complete_reports.update({rank: report for rank, _, report in update.reports})


# The shards of several ranks, sealed and written at a time; each is written close behind its digests.

AT_ONCE = 16
"""Ranks at a time: more than any node has devices."""


class NotSealed(CheckpointError):
    """What lies in memory cannot be sealed: it is damaged, or this interpreter has not its digest."""


def seal_and_write_all(
    slots: Mapping[int, OpenSlot], write: Callable[[int, SlotShard], FileRecord]
) -> Dict[int, FileRecord]:
    """Seal the shard of every rank and call `write(rank, shard)` for it, in threads; return the results by
    rank.

    Raises NotSealed, or what the lowest rank that failed raised, once all have ended.
    """
    with ThreadPoolExecutor(max(1, min(AT_ONCE, len(slots))), "flush") as pool:
        futures = {rank: pool.submit(_seal_and_write, rank, slots[rank], write) for rank in sorted(slots)}
    return {rank: future.result() for rank, future in futures.items()}


def _seal_and_write(rank: int, slot: OpenSlot, write: Callable[[int, SlotShard], FileRecord]) -> FileRecord:
    shard = SlotShard(slot.slot)
    failed: List[Exception] = []

    def seal() -> None:
        try:
            shard.seal()
        except Exception as err:
            failed.append(err)

    sealing = threading.Thread(target=seal, daemon=True, name=f"seal-{rank}")
    sealing.start()
    try:
        written = write(rank, shard)
    except CheckpointError:
        sealing.join()
        if failed:
            raise NotSealed(f"rank {rank}: {failed[0]}") from failed[0]
        raise
    finally:
        sealing.join()
    # The writer may be ready a moment before the page is.
    return replace(written, root=shard.page.shard.root)
