"""The agent's dealings with storage and with the node's disk, each as a job for a worker."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Callable, Dict, FrozenSet, Mapping, Optional, Tuple

from hyperpod_kit.checkpoint.agent.persist import io_progress, local, persist
from hyperpod_kit.checkpoint.agent.persist.local import Part
from hyperpod_kit.checkpoint.agent.persist.seal import SlotShard
from hyperpod_kit.checkpoint.agent.process.agent_captures import Capture
from hyperpod_kit.checkpoint.agent.process.agent_events import CommitOutcome
from hyperpod_kit.checkpoint.agent.reports import assemble, shard_report
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report, ShardReport
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import Page
from hyperpod_kit.checkpoint.repository import commit, policy, read_back, retention
from hyperpod_kit.checkpoint.repository.format import layout, manifest
from hyperpod_kit.checkpoint.repository.format.shard import Parser
from hyperpod_kit.checkpoint.repository.read import stream, verify
from hyperpod_kit.checkpoint.repository.records import catalog, identity, starts
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError


class ReadBackTime:
    """How fast retention reads checkpoints back, and until when: it waits for `pace`, and ends when the agent is
    `stopped`, or when it keeps the end of a job waiting."""

    def __init__(
        self, pace: persist.Pace, stopped: Callable[[], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pace, self._stopped, self._clock = pace, stopped, clock
        self._started_at = self._hurried_at = -math.inf
        self._is_hurried = False

    def record_job_start(self) -> None:
        """Record that a job begins that may read checkpoints back."""
        self._started_at = self._clock()

    def lift_pace_and_set_deadline(self) -> None:
        """Lift the rate limit; from now on read-backs may take `read_back.SECONDS_AT_END` more."""
        self._pace.lift()
        if not self._is_hurried:
            self._is_hurried, self._hurried_at = True, self._clock()

    def wait_until_may_continue(self, size: int) -> bool:
        """Wait until `size` bytes may be read; return False when the read-back has to end. See
        read_back.MayContinue."""
        if self._stopped():
            return False
        if self._is_hurried and self._clock() > max(self._started_at, self._hurried_at) + read_back.SECONDS_AT_END:
            return False
        self._pace.wait_for_bytes(size)
        return True


class Storage:
    """The root that this run writes to, and its directory on the node's disk where there is one.

    `run_identity`: of the run whose root it was at the start. `keep`: the retention policy as JSON. `stopped`: the
    agent has to leave everything as it is and go. Raises CheckpointError (S3 without a region), UsageError when `keep`
    is no policy.
    """

    def __init__(
        self,
        root: str,
        *,
        run_identity: identity.RunIdentity,
        directory: Optional[str],
        rank: int,
        versions: Dict[str, str],
        rate_limit: Optional[float],
        keep: Any,
        stopped: Callable[[], bool],
    ) -> None:
        self.store, self._run_identity = open_store(root), run_identity
        run_hash = shm_slots.run_hash(run_identity.run_id)
        self.local = local.LocalDisk(directory, run_hash, rank) if directory else None
        # Each of its own: disk and network are not one resource.
        self._pace, self._upload_pace = persist.Pace(rate_limit), persist.Pace(rate_limit)
        self._reading = ReadBackTime(persist.Pace(rate_limit), stopped)
        self._prover = read_back.Prover(self.store, may_continue=self._reading.wait_until_may_continue)
        self._versions = versions
        self._parser, self._columns = Parser(), assemble.IndexCache()
        self._keep = policy.from_json(keep) if keep else None
        self._stopped = stopped

    def lift_rate_limits(self) -> None:
        """Lift the rate limits of writes, uploads and read-backs, and bound the time of read-backs."""
        self._pace.lift()
        self._upload_pace.lift()
        self._reading.lift_pace_and_set_deadline()

    def _write_options(self, capture: Capture, pace: persist.Pace) -> persist.WriteOptions:
        return persist.WriteOptions(stopped=lambda: self._stopped() or capture.ended, pace=pace)

    def write_local(self, capture: Capture) -> Callable[[], Report]:
        """Return a job that writes this rank's part to the node's disk."""

        def job() -> Report:
            assert self.local is not None and capture.shard is not None
            if not capture.claim_for_writing():
                raise persist.Stopped("withdrawn before it was begun")
            return local.write_part(
                capture.shard, self.local.store, capture.checkpoint_id, self._write_options(capture, self._pace)
            )

        return job

    def write(self, capture: Capture) -> Callable[[], Report]:
        """Return a job that writes this rank's shard from memory to storage and returns the report about it."""

        def job() -> Report:
            if capture.slot is not None and not capture.claim_for_writing():
                raise persist.Stopped("withdrawn before it was begun")
            return self._persist_shard(capture, self._write_options(capture, self._pace))

        return job

    def upload_to_storage(self, capture: Capture) -> Callable[[], Report]:
        """Return a job that brings to storage what is on the node's disk: from memory while it is there too."""
        return lambda: self._persist_shard(capture, self._write_options(capture, self._upload_pace))

    def _persist_shard(self, capture: Capture, options: persist.WriteOptions) -> Report:
        if capture.slot is not None and capture.shard is not None:
            record = self._write_shard_reusing_intact_file(capture, capture.shard, options)
            return shard_report.report_of(capture.shard.slot, record, self._parser)
        if self.local is None or capture.part is None:
            raise CheckpointError("it is no longer in memory or on the node's disk")
        copy_shard(capture.part, self.local.store, self.store, capture.checkpoint_id, options)
        return capture.part.report

    def _write_shard_reusing_intact_file(
        self, capture: Capture, shard: SlotShard, options: persist.WriteOptions
    ) -> manifest.FileRecord:
        """As persist.write_shard; where an agent that died left the file, it is taken or replaced."""
        try:
            return persist.write_shard(shard, self.store, capture.checkpoint_id, options)
        except FileExistsError:
            shard.wait_until_final(shard.page.shard.size)
            page, name = shard.slot.page or shard.page, layout.shard_file(shard.page.origin.rank)
            if not self._is_shard_file_on_storage_intact(f"{capture.checkpoint_id}/{name}", page):
                # The attempt is not committed: nobody reads it.
                self.store.delete(f"{capture.checkpoint_id}/{name}")
                return persist.write_shard(shard, self.store, capture.checkpoint_id, options)
            return manifest.FileRecord(name, page.shard.size, page.shard.root, page.origin.rank)

    def _is_shard_file_on_storage_intact(self, file_name: str, page: Page) -> bool:
        reader = self.store.open_read(file_name)
        try:
            stored_shard = stream.Shard(
                reader, page.shard.size, page.shard.root, name=file_name, chunk=page.shard.chunk
            )
            buffer = stream.Buffer(stream.round_up_to_page(page.shard.chunk))
            for index in range(stored_shard.chunks):
                stored_shard.verify_chunk(index, stored_shard.fetch_unverified_chunk(index, buffer))
                io_progress.record_progress()
            return True
        except CheckpointError:
            return False
        finally:
            reader.close()

    def list_local_parts(self) -> Tuple[local.Part, ...]:
        """What earlier starts left on the node's disk for this rank, newest first. Raises OSError."""
        if self.local is not None:
            return tuple(self.local.parts())
        return ()

    def remove_all_but_newest_local_parts(self, upto: str, busy: FrozenSet[str]) -> Callable[[], None]:
        """Return a job that removes old parts from the node's disk, see `local.remove_all_but_newest_parts`."""

        def job() -> None:
            if self.local is not None:
                self.local.remove_all_but_newest_parts(upto=upto, busy=busy)

        return job

    def find_checkpoint_id_if_committed(self, capture: Capture) -> Callable[[], str]:
        """Return a job that finds the checkpoint in which this capture is committed already; "" when there is
        none.

        A start that was killed between the manifest and the mark in shared memory leaves it so.
        """

        def job() -> str:
            page = None
            if capture.part is not None:
                page = capture.part.report.page
            if capture.shard is not None:
                page = capture.shard.page
            for entry in catalog.iter_checkpoints_newest_first(self.store):
                if page is None or (entry.name.epoch, entry.name.seq) < (page.epoch, page.seq):
                    break
                if entry.committed and (entry.name.epoch, entry.name.seq) == (page.epoch, page.seq):
                    committed_manifest = verify.read_manifest(self.store, entry.checkpoint_id)
                    if committed_manifest.shards[page.origin.rank].root == page.shard.root:
                        return entry.checkpoint_id
            return ""

        return job

    def commit(
        self, capture: Capture, reports: Mapping[int, ShardReport], *, checks_newer_start: bool
    ) -> Callable[[], CommitOutcome]:
        """Return a job that makes a checkpoint of what all ranks have written.

        `checks_newer_start`: look for a newer start once the manifest is there, since this start made the capture
        and its trainer is told that it is durable. A start that began before that may have missed the manifest, one
        that begins later finds it.
        """

        def job() -> CommitOutcome:
            failpoint("agent.before_commit")
            assembled = assemble.build_commit_files(reports, self._versions, self._columns)
            commit.commit(self.store, capture.checkpoint_id, assembled.manifest, assembled.extra, assembled.index_bytes)
            failpoint("agent.committed")
            taken_by = None
            if checks_newer_start:
                taken_by = starts.describe_newer_start(self.store, capture.key[0])
            return CommitOutcome(capture.checkpoint_id, taken_by or "")

        return job

    def apply_retention(self, abandoned: FrozenSet[str]) -> Callable[[], retention.Applied]:
        """Return a job for after a commit: it deletes what the policy does not keep, and what abandoned saves
        left."""

        def job() -> retention.Applied:
            if self._keep is None or self._stopped():
                return retention.Applied((), ())
            self._reading.record_job_start()
            return retention.enforce(
                self.store, self._keep, self._run_identity, prover=self._prover, abandoned=abandoned
            )

        return job

    def make_room(self, capture: Capture, abandoned: FrozenSet[str]) -> Callable[[], retention.Applied]:
        """Return a job for a save that found no room: it deletes the oldest checkpoint that the policy would
        delete once that save is there."""

        def job() -> retention.Applied:
            name = layout.parse_checkpoint_id(capture.checkpoint_id)
            if self._keep is None or name is None or self._stopped():
                return retention.Applied((), ())
            coming = policy.CheckpointFacts(capture.checkpoint_id, catalog.sort_key(name), name.step)
            self._reading.record_job_start()
            return retention.enforce(
                self.store,
                self._keep,
                self._run_identity,
                prover=self._prover,
                save_lacking_room=coming,
                abandoned=abandoned,
            )

        return job

    def describe_newer_start(self, epoch: int) -> Callable[[], str]:
        """Return a job that says who has the root after a start of that epoch; "" while nobody has."""
        return lambda: starts.describe_newer_start(self.store, epoch) or ""


# From the node's disk to storage: the same bytes, each chunk proved before it goes on.
#
# A disk that returns something else than was written must not become a checkpoint that fails only when it is needed.


def copy_shard(
    part: Part, source: Store, target: Store, checkpoint_id: str, options: persist.WriteOptions
) -> manifest.FileRecord:
    """Copy one rank's local shard into `checkpoint_id` of `target`; its record.

    Raises DigestMismatch, CheckpointError when the local file is not what was written, Stopped, OSError.
    """
    record, chunk = part.report.record, part.report.page.shard.chunk
    reader = source.open_read(f"{part.checkpoint_id}/{record.file}")
    try:
        shard = stream.Shard(reader, record.size, record.root, name=f"local {record.file}", chunk=chunk)
        _copy_verifying_chunks(shard, target, f"{checkpoint_id}/{record.file}", options)
    finally:
        reader.close()
    return record


def _copy_verifying_chunks(shard: stream.Shard, target: Store, name: str, options: persist.WriteOptions) -> None:
    last = shard.chunks - 1
    # The leaves go with the last chunk.
    ends = [shard.chunk_bounds(index)[1] for index in range(last)] + [shard.size]
    ranges = [(shard.chunk_bounds(index)[0], end) for index, end in enumerate(ends)]
    longest = max(end - begin for begin, end in ranges)
    buffers = threading.local()

    def read_range(begin: int, end: int) -> memoryview:
        """[begin, end) in this thread's buffer: page-aligned, so that it can be read and written past the cache."""
        if not hasattr(buffers, "buffer"):
            buffers.buffer = stream.Buffer(longest + stream.PAGE)
        view = shard.read_unverified_into(buffers.buffer.view, begin, end)
        index = begin // shard.chunk
        shard.verify_chunk(index, view[: shard.chunk_bounds(index)[1] - begin])
        failpoint("upload.slice")
        return view

    failpoint("upload.begin")
    persist.write_file(target, name, shard.size, ranges, read_range, options)
    failpoint("upload.done")
