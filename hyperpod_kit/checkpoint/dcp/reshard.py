"""Read any slices of any tensors of a committed attempt: each chunk from storage once, by one rank.

A rank says which slices it wants and where they go. The slices become byte ranges, the ranges chunks; a chunk that
several ranks need is read and proved by one of them, who hands on to each other one what that one wants of it. What
does not arrive as it was sent is read from storage by who wants it, and so is all the rest where handing on turns out
to be much slower than reading.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp.hand_on import HandOn, too_slow
from hyperpod_kit.checkpoint.dcp.sharing import Work
from hyperpod_kit.checkpoint.dcp.slices import Chunk, SliceRequests
from hyperpod_kit.checkpoint.load import TargetFault
from hyperpod_kit.checkpoint.reason import Reason, Verdict, reason_in
from hyperpod_kit.checkpoint.repository import shard as shards
from hyperpod_kit.checkpoint.repository import stream, tombstone, verify
from hyperpod_kit.checkpoint.repository.chunk_reader import Pump
from hyperpod_kit.checkpoint.repository.manifest import Manifest
from hyperpod_kit.checkpoint.repository.rows import Rows
from hyperpod_kit.checkpoint.repository.rows import encode as encode_rows
from hyperpod_kit.checkpoint.repository.rows import read as read_rows
from hyperpod_kit.checkpoint.repository.store.base import Store, StoreReader
from hyperpod_kit.checkpoint.restore_progress import unheard
from hyperpod_kit.errors import CheckpointError, DigestUnavailable

T = TypeVar("T")

NOTHING_KEPT: Mapping[Chunk, memoryview] = {}


class Attempt:
    """An attempt that is open for reading: its manifest, and its shards, opened when they are needed."""

    def __init__(self, store: Store, attempt: str, body: Manifest) -> None:
        self.store = store
        self.name = attempt
        self.manifest = body
        self._open: dict[int, tuple[StoreReader, stream.Shard]] = {}

    def shard(self, number: int) -> stream.Shard:
        """Raises DigestMismatch, CheckpointError, OSError."""
        if number not in self._open:
            if number >= self.manifest.world:
                raise CheckpointError(f"its index names shard {number} of {self.manifest.world}")
            record = self.manifest.shards[number]
            reader = self.store.open_read(f"{self.name}/{record.file}")
            try:
                made = stream.Shard(reader, record.size, record.root, name=record.file, chunk=self.manifest.chunk)
            except BaseException:
                reader.close()
                raise
            self._open[number] = reader, made
        return self._open[number][1]

    def close(self) -> None:
        for reader, _ in self._open.values():
            reader.close()
        self._open.clear()

    def rows(self) -> Rows:
        """From index.bin, checked; from the headers where there is none. Raises as `shard`."""
        return read_rows(self.index_bytes())

    def index_bytes(self) -> bytes:
        """What index.bin has, or would have. Raises as `shard`."""
        record = self.manifest.index
        if record is not None:
            return verify.read_extra(self.store, self.name, record)
        return encode_rows({number: self._header(number) for number in range(len(self.manifest.shards))})

    def _header(self, number: int) -> Sequence[shards.Placed]:
        opened = self.shard(number)
        first = memoryview(opened.read(0, min(4096, opened.data_end)))
        length = shards.head_size(first)
        if length > opened.data_end:
            raise CheckpointError(f"{opened.name}: a header of {length} bytes in a file of {opened.size}")
        return shards.parse(memoryview(opened.read(0, length)), opened.size).tensors


@contextlib.contextmanager
def opened(store: Store, attempt: str, body: Manifest) -> Iterator[Attempt]:
    """An attempt whose files are closed at the end."""
    made = Attempt(store, attempt, body)
    try:
        yield made
    finally:
        made.close()


def rows_of(ranks: Ranks, attempt: Attempt) -> Rows | Reason:
    """Where everything lies, read by rank 0 for all; or why that is not known. A collective."""
    found = guarded(attempt.index_bytes) if ranks.rank == 0 else b""
    problem = ranks.agree(reason_in(found))
    if problem is not None:
        return problem
    data: bytes = ranks.broadcast(found)
    rows = guarded(lambda: read_rows(data))
    problem = ranks.agree(reason_in(rows))
    return rows if problem is None else problem


def guarded(work: Callable[[], T]) -> T | Reason:
    """What this rank's part gives; an error becomes a reason, so that no rank leaves the others waiting.

    Raises DigestUnavailable, which is no verdict on what was read.
    """
    try:
        return work()
    except DigestUnavailable:
        raise
    except (TargetFault, MemoryError) as err:
        return Reason(str(err) or type(err).__name__, Verdict.UNFILLED)
    except (CheckpointError, OSError) as err:
        damaged, unread = tombstone.proves(err), verify.is_unread(err)
        verdict = Verdict.DAMAGED if damaged else Verdict.UNREAD if unread else Verdict.UNUSABLE
        return Reason(verify.describe_failure(err), verdict)
    except Exception as err:  # whatever it is, a rank that left here would leave the others waiting
        return Reason(f"{type(err).__name__}: {err}")


def carry_out(
    ranks: Ranks,
    attempt: Attempt,
    work: Work,
    requests: SliceRequests,
    kept: Mapping[Chunk, memoryview] = NOTHING_KEPT,
    read: Callable[[int], None] = unheard,
) -> Reason | None:
    """Read, check, hand on; None, or why not, the same on all ranks. A collective.

    `kept`: chunks that this rank has read and proved already, those that it said it has when work was divided. `read`
    hears of the bytes of each chunk that this rank reads, in any thread.
    """
    reader = _ChunkReading(attempt, requests, kept, read)
    problem = ranks.agree(reason_in(guarded(lambda: reader.read(work.alone[ranks.rank]))))
    rounds, again = work.rounds(), list[Chunk]()
    hand_on = HandOn(ranks, attempt.manifest, requests)
    while rounds and problem is None:
        part = rounds.pop(0)
        mine = [share.chunk for share in part if share.owner == ranks.rank]
        begin = time.monotonic()
        chunks = guarded(partial(reader.read, mine, keep=True))
        reading = time.monotonic() - begin
        problem = ranks.agree(reason_in(chunks))
        if problem is not None:
            break
        begin = time.monotonic()
        again += hand_on.round(part, chunks if isinstance(chunks, dict) else {})
        if too_slow(ranks.gather((reading, time.monotonic() - begin))):
            again += [share.chunk for left in rounds for share in left if share.concerns(ranks.rank)]
            rounds = []
    if problem is None:
        problem = ranks.agree(reason_in(guarded(lambda: reader.read(again))))
    if problem is None:
        problem = ranks.agree(guarded(requests.complete))
    return problem


class _ChunkReading:
    """Chunks of an attempt from storage, or from what this rank has already, proved, to where they are wanted."""

    def __init__(
        self,
        attempt: Attempt,
        requests: SliceRequests,
        kept: Mapping[Chunk, memoryview],
        heard: Callable[[int], None],
    ) -> None:
        self._attempt, self._requests, self._kept, self._heard = attempt, requests, kept, heard

    def read(self, chunks: Iterable[Chunk], *, keep: bool = False) -> dict[Chunk, memoryview]:
        """Their bytes too, if they are to be kept. Raises DigestMismatch, CheckpointError, OSError."""
        found: dict[Chunk, memoryview] = {}
        jobs = []
        number_of: dict[str, int] = {}
        for number, place in chunks:
            here = self._kept.get((number, place))
            if here is not None:
                self._requests.take(number, place * self._attempt.manifest.chunk, here)
                found[number, place] = here
                self._heard(len(here))
                continue
            shard = self._attempt.shard(number)
            jobs.append((shard, place))
            number_of[shard.name] = number

        def deliver(opened: stream.Shard, begin: int, view: memoryview) -> None:
            number = number_of[opened.name]
            self._requests.take(number, begin, view)
            self._heard(len(view))
            if keep:
                found[number, begin // opened.chunk] = memoryview(bytearray(view))

        with Pump(jobs) as pump:
            pump.finish(deliver)
        return found
