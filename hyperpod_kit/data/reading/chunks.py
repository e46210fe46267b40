"""Objects by chunks, kept in memory and, where a cache is given, on a local disk.

A GET fetches one chunk, several come side by side, and those used last are kept. A chunk is usable as soon as it is
there, whatever is missing of the object. Where it is known which samples are read together, a chunk begins and ends
with them, so that nothing else comes with them. A program passes a `DiskCache` to `IndexedDataset`; the rest serves
`source_files`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import threading
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor

if TYPE_CHECKING:
    from hyperpod_kit.data.reading.objects import S3Object

CHUNK_BYTES = 1 << 20
_MAX_REQUESTS = 16
_CHECKSUM_BYTES = 4
"""Bytes of a kept chunk's checksum."""


class DiskCache(NamedTuple):
    """A directory on a local disk for chunks of objects that come from `s3://`.

    Delete it at any time: nothing is lost. Each file ends with a checksum, so a damaged one is fetched again, and so is
    what another user has put there: the directory may be one that others write to.

    Attributes:
        folder: The directory; it is made when needed.
        floor: How many bytes stay free on its disk: nothing is added while there are less. Default: 10 GiB.

    Example:
        With an `index`, a `SampleIndex`:

            from hyperpod_kit.data import DiskCache, IndexedDataset

            dataset = IndexedDataset(index, cache=DiskCache("/tmp/cache", floor=100 << 30))
    """

    folder: str
    floor: int = 10 << 30

    def get(self, key: str, length: int) -> bytes | None:
        """Read a chunk.

        Args:
            key: What identifies it: object, version and range.
            length: How many bytes it has.

        Returns:
            The chunk; None unless it is there, is complete, and was kept by this user or by root.
        """
        try:
            data = by_descriptor.read_own_or_root_file(self._path(key), length + _CHECKSUM_BYTES)
        except (OSError, Untrusted):
            return None
        chunk, check = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if len(chunk) != length or check != _chunk_digest(key, chunk):
            return None
        return chunk

    def put(self, key: str, data: bytes) -> None:
        """Keep a chunk, if there is room.

        A disk that fails, or a directory that is another user's, costs only the cache: nothing is raised.

        Args:
            key: What identifies it.
            data: Its bytes.
        """
        with contextlib.suppress(OSError, Untrusted):
            path = self._path(key)
            by_descriptor.make_parents(path)
            if shutil.disk_usage(self.folder).free - len(data) >= self.floor:
                atomic_file.write_atomically(path, data + _chunk_digest(key, data))

    def _path(self, key: str) -> str:
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        return os.path.join(self.folder, name[:2], name)


def _chunk_digest(key: str, chunk: bytes) -> bytes:
    """Compute the checksum of a chunk and its key: who may rename in the directory may give one chunk the name of
    another."""
    return zlib.crc32(chunk, zlib.crc32(key.encode())).to_bytes(_CHECKSUM_BYTES, "little")


class ChunkKey(NamedTuple):
    """Which bytes of which object, as it was when it was opened."""

    path: str
    etag: str
    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.path} {self.etag} {self.begin}-{self.end}"


class ChunkStore:
    """The chunks of this process: `memory` bytes of them, fetched by threads."""

    def __init__(self, memory: int, disk: DiskCache | None = None) -> None:
        self._memory = memory
        self._disk = disk
        self._chunks: OrderedDict[ChunkKey, bytes | Future[bytes]] = OrderedDict()
        """The bytes of each chunk that was fetched: to read them out of a future takes longer than to cut a line."""
        self._size = 0
        """Bytes of all of them."""
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_MAX_REQUESTS)
        self.fetched = 0

    def request_chunk(self, source: S3Object, key: ChunkKey) -> bytes | Future[bytes]:
        """Return a chunk, or its future while it is fetched; the fetch is started unless it is under way."""
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is None:
                self._size += key.end - key.begin
                chunk = self._chunks[key] = self._pool.submit(self._fetch_and_keep, source, key)
                while self._size > self._memory and len(self._chunks) > _MAX_REQUESTS:
                    evicted, _ = self._chunks.popitem(last=False)
                    self._size -= evicted.end - evicted.begin
            else:
                self._chunks.move_to_end(key)
        return chunk

    def _fetch_and_keep(self, source: S3Object, key: ChunkKey) -> bytes:
        """Fetch a chunk and put it where its future is; a fetch that fails is forgotten before anybody hears of it, so
        that the next request starts another."""
        try:
            data = self._fetch_through_disk_cache(source, key)
        except BaseException:
            with self._lock:
                if self._chunks.pop(key, None) is not None:
                    self._size -= key.end - key.begin
            raise
        with self._lock:
            if key in self._chunks:
                self._chunks[key] = data
        return data

    def _fetch_through_disk_cache(self, source: S3Object, key: ChunkKey) -> bytes:
        size = key.end - key.begin
        if self._disk:
            kept = self._disk.get(str(key), size)
            if kept is not None:
                return kept
        data = source.read(key.begin, size)
        with self._lock:
            self.fetched += len(data)
        if self._disk:
            self._disk.put(str(key), data)
        return data

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _wait_for_bytes(chunk: bytes | Future[bytes]) -> bytes:
    """Return the bytes of a requested chunk. Raises what the source's `read` raises."""
    if isinstance(chunk, bytes):
        return chunk
    return chunk.result()


def chunk_begin_offsets_and_size(size: int, cut_offsets: Sequence[int] = ()) -> array[int]:
    """Return the offsets at which the chunks of an object begin, and its size.

    They begin at `cut_offsets`, which rise, and where a chunk would be too long. Without offsets they are all as
    long.
    """
    bounds = array("q")
    for begin, end in itertools.pairwise(sorted({0, *cut_offsets, size})):
        bounds.extend(range(begin, end, CHUNK_BYTES))
    bounds.append(size)
    return bounds


class ChunkedObject:
    """See SourceFile. `places`: see `chunk_begin_offsets_and_size`."""

    def __init__(self, url: str, store: ChunkStore, places: Sequence[int] = ()) -> None:
        from hyperpod_kit.data.reading.objects import S3Object

        self._source = S3Object(url)
        self._store = store
        self.path = url
        self.size = self._source.size
        self.mtime_ns = self._source.mtime_ns
        self._cuts = chunk_begin_offsets_and_size(self.size, [offset for offset in places if offset < self.size])

    @property
    def source(self) -> S3Object:
        """Return the object itself, of which nothing is kept."""
        return self._source

    def read(self, offset: int, length: int) -> bytes:
        """See SourceFile."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        first = self._chunk_number_at(offset)
        begin = offset - self._cuts[first]
        if end <= self._cuts[first + 1]:
            data = _wait_for_bytes(self._request_chunk(first))
        else:
            data = b"".join(map(_wait_for_bytes, [self._request_chunk(n) for n in self._chunk_numbers(first, end)]))
        return data[begin : begin + end - offset]

    def prefetch_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Have the chunks of ranges, (offset, length) each, fetched in the order in which they are needed."""
        needed: dict[int, None] = {}
        for offset, length in ranges:
            end = min(offset + length, self.size)
            if offset >= end:
                continue
            first = self._chunk_number_at(offset)
            needed[first] = None
            if end > self._cuts[first + 1]:
                needed.update(dict.fromkeys(self._chunk_numbers(first, end)))
        for number in needed:
            self._request_chunk(number)

    def _chunk_number_at(self, offset: int) -> int:
        """Find the chunk that an offset lies in."""
        return bisect_right(self._cuts, offset) - 1

    def _chunk_numbers(self, first: int, end_offset: int) -> range:
        """Return the chunks from `first` on that begin before `end_offset`."""
        return range(first, bisect_left(self._cuts, end_offset, lo=first))

    def _request_chunk(self, number: int) -> bytes | Future[bytes]:
        key = ChunkKey(self.path, self._source.etag, self._cuts[number], self._cuts[number + 1])
        return self._store.request_chunk(self._source, key)

    def close(self) -> None:
        """See SourceFile."""
