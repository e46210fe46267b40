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
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
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


class ChunkStore:
    """The chunks of this process: `memory` bytes of them, fetched by threads."""

    def __init__(self, memory: int, disk: DiskCache | None = None) -> None:
        self._memory = memory
        self._disk = disk
        self._chunks: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._size = 0
        """Bytes of all of them."""
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_MAX_REQUESTS)
        self.fetched = 0

    def request_chunk(self, source: S3Object, begin: int, end: int) -> Future[bytes]:
        """Return the future of a chunk, whose fetch is started unless it is there or under way."""
        key = f"{source.path} {source.etag} {begin}-{end}"
        with self._lock:
            future = self._chunks.get(key)
            if future is None or (future.done() and future.exception() is not None):
                if key not in self._chunks:
                    self._size += end - begin
                future = self._chunks[key] = self._pool.submit(self._fetch_through_disk_cache, source, key, begin, end)
                while self._size > self._memory and len(self._chunks) > _MAX_REQUESTS:
                    evicted, _ = self._chunks.popitem(last=False)
                    self._size -= _length_from_key(evicted)
            self._chunks.move_to_end(key)
        return future

    def _fetch_through_disk_cache(self, source: S3Object, key: str, begin: int, end: int) -> bytes:
        data = None
        if self._disk:
            data = self._disk.get(key, end - begin)
        if data is None:
            data = source.read(begin, end - begin)
            with self._lock:
                self.fetched += len(data)
            if self._disk:
                self._disk.put(key, data)
        return data

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _length_from_key(key: str) -> int:
    begin, _, end = key.rpartition(" ")[2].partition("-")
    return int(end) - int(begin)


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
        first = self._chunk_index_at(offset)
        requests = [self._store.request_chunk(self._source, *bounds) for bounds in self._chunk_ranges(first, end)]
        data = requests[0].result() if len(requests) == 1 else b"".join(request.result() for request in requests)
        begin = offset - self._cuts[first]
        return data[begin : begin + end - offset]

    def prefetch_range(self, offset: int, length: int) -> None:
        """Have the chunks of a range fetched."""
        end = min(offset + length, self.size)
        if offset < end:
            for bounds in self._chunk_ranges(self._chunk_index_at(offset), end):
                self._store.request_chunk(self._source, *bounds)

    def _chunk_index_at(self, offset: int) -> int:
        """Find the chunk that an offset lies in."""
        return bisect_right(self._cuts, offset) - 1

    def _chunk_ranges(self, chunk_index: int, end_offset: int) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of the chunks from `chunk_index` on that begin before `end_offset`."""
        cuts = self._cuts
        while cuts[chunk_index] < end_offset:
            yield cuts[chunk_index], cuts[chunk_index + 1]
            chunk_index += 1

    def close(self) -> None:
        """See SourceFile."""
