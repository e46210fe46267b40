"""Read a committed checkpoint back from the medium, slowly, and say whether it is what was committed.

From the medium: a file of which the disk has dropped a write looks whole for as long as its pages are in this machine's
memory, so these are given up first, and what can be read past them is (see `store.posix`). One thread and one buffer:
it goes on behind training's back.
"""

from __future__ import annotations

import enum
from typing import Callable, NamedTuple, Set

from hyperpod_kit.checkpoint.repository.format import digest, layout, manifest
from hyperpod_kit.checkpoint.repository.read import stream, verify
from hyperpod_kit.checkpoint.repository.records import proofs, tombstone
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError

MayContinue = Callable[[int], bool]
"""Asked before so many bytes are read; False ends it."""

SECONDS_AT_END = 10.0
"""That a read-back may take once nobody trains any more: what it was for stays until the next start."""


class ReadBackOutcome(enum.Enum):
    """What a read-back has found."""

    PROVED = "every byte matches the commit"
    DAMAGED = "bytes differ from the commit, also at the second read"
    DOUBTFUL = "it could not be read completely, or two reads differed"
    GIVEN_UP = "it was stopped before its end"


class ReadBack(NamedTuple):
    outcome: ReadBackOutcome
    reason: str = ""


class GivenUp(CheckpointError):
    """It is not to be read any more."""


def _always(size: int) -> bool:
    return True


def read_back(store: Store, checkpoint_id: str, may_continue: MayContinue = _always) -> ReadBack:
    """Read and verify every byte of a committed checkpoint, a second time where the first finds damage, and
    return the outcome. Raise nothing."""
    first = _read_once(store, checkpoint_id, may_continue)
    if first.outcome is not ReadBackOutcome.DAMAGED:
        return first
    # One bad read must not condemn a checkpoint.
    second = _read_once(store, checkpoint_id, may_continue)
    if second.outcome is ReadBackOutcome.PROVED:
        return ReadBack(ReadBackOutcome.DOUBTFUL, f"only the second of two reads was correct: {first.reason}")
    return second


def _read_once(store: Store, checkpoint_id: str, may_continue: MayContinue) -> ReadBack:
    try:
        _verify_all_files(store, checkpoint_id, may_continue)
        return ReadBack(ReadBackOutcome.PROVED)
    except GivenUp:
        return ReadBack(ReadBackOutcome.GIVEN_UP)
    except (CheckpointError, OSError) as err:
        if tombstone.proves_damage(err):
            outcome = ReadBackOutcome.DAMAGED
        else:
            outcome = ReadBackOutcome.DOUBTFUL
        return ReadBack(outcome, verify.describe_failure(err))
    except Exception as err:  # of one checkpoint; the others are read
        return ReadBack(ReadBackOutcome.DOUBTFUL, verify.describe_unforeseen(err))


def _verify_all_files(store: Store, checkpoint_id: str, may_continue: MayContinue) -> None:
    """Verify every file of a checkpoint, read from the medium. Raise DigestMismatch, CheckpointError, OSError,
    GivenUp."""
    store.drop_cached_pages(f"{checkpoint_id}/{layout.MANIFEST_FILE}")
    body = verify.read_manifest(store, checkpoint_id)
    digest.algorithm(body.digest)
    for small in (body.extra, body.index):
        if small is not None:
            _require_continue(may_continue, small.size)
            store.drop_cached_pages(f"{checkpoint_id}/{small.file}")
            verify.read_verified_small_file(store, checkpoint_id, small)
    for record in body.shards:
        _verify_shard(store, checkpoint_id, record, body.chunk, may_continue)


def _verify_shard(
    store: Store, checkpoint_id: str, record: manifest.FileRecord, chunk: int, may_continue: MayContinue
) -> None:
    name = f"{checkpoint_id}/{record.file}"
    store.drop_cached_pages(name)
    reader = store.open_read(name)
    try:
        shard = stream.Shard(reader, record.size, record.root, name=record.file, chunk=chunk)
        buffer = stream.Buffer(stream.round_up_to_page(min(shard.chunk, shard.data_end)))
        for index in range(shard.chunks):
            begin, end = shard.chunk_bounds(index)
            _require_continue(may_continue, end - begin)
            shard.verify_chunk(index, shard.fetch_unverified_chunk(index, buffer))
    finally:
        reader.close()


def _require_continue(may_continue: MayContinue, size: int) -> None:
    if not may_continue(size):
        raise GivenUp("the read-back was stopped")


class Prover:
    """Reads checkpoints of one root back, and knows which were proved: by the root's records, and by itself where the
    root had no room for the record yet.

    `by`: who, for the records. `may_continue`: see MayContinue.
    """

    def __init__(self, store: Store, *, by: str = "retention", may_continue: MayContinue = _always) -> None:
        self._store, self._by, self._may_continue = store, by, may_continue
        self._unrecorded: Set[str] = set()

    def proved_checkpoints(self) -> Set[str]:
        """Return the checkpoints that were ever proved. Raise OSError."""
        return proofs.proved_checkpoints(self._store) | self._unrecorded

    def read_back_and_record(self, checkpoint_id: str) -> ReadBack:
        """Read the checkpoint back and return the outcome; record a proof, or write a tombstone when it is damaged,
        as far as the root takes that."""
        finding = read_back(self._store, checkpoint_id, self._may_continue)
        if finding.outcome is ReadBackOutcome.PROVED:
            self._unrecorded.add(checkpoint_id)
            self.record_pending_proofs()
        elif finding.outcome is ReadBackOutcome.DAMAGED:
            self._write_tombstone(checkpoint_id, finding.reason)
        return finding

    def record_pending_proofs(self) -> None:
        """Write the proofs that the root had no room for yet. Raise nothing."""
        for checkpoint_id in sorted(self._unrecorded):
            try:
                proofs.record_proof(self._store, checkpoint_id, self._by)
            except (CheckpointError, OSError):
                return
            self._unrecorded.discard(checkpoint_id)

    def delete_proof(self, checkpoint_id: str) -> None:
        """Delete the proof of a checkpoint, before that is deleted. Raise CheckpointError, OSError."""
        self._unrecorded.discard(checkpoint_id)
        proofs.delete_proof(self._store, checkpoint_id)

    def _write_tombstone(self, checkpoint_id: str, reason: str) -> None:
        try:
            tombstone.write(self._store, checkpoint_id, f"read back: {reason}")
        except (CheckpointError, OSError):
            return  # the next one who reads it finds it too
