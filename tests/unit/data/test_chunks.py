"""Chunks of objects in memory: fetched once, forgotten where their fetch fails, dropped where there is no room."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from hyperpod_kit.data.reading.chunks import ChunkKey, ChunkStore


class Source:
    """An object of ten bytes a chunk that counts its reads; the reads of `failing` offsets fail once."""

    path, etag = "s3://corpus/a", '"0a"'

    def __init__(self, *failing: int) -> None:
        self.offsets_read: list[int] = []
        self._failing = set(failing)

    def read(self, offset: int, length: int) -> bytes:
        self.offsets_read.append(offset)
        if offset in self._failing:
            self._failing.remove(offset)
            raise OSError("the connection was reset")
        return bytes([offset % 256]) * length


@contextlib.contextmanager
def chunk_store(memory: int) -> Iterator[ChunkStore]:
    store = ChunkStore(memory)
    try:
        yield store
    finally:
        store.close()


def request(store: ChunkStore, source: Source, begin: int) -> bytes | Future[bytes]:
    key = ChunkKey(source.path, source.etag, begin, begin + 10)
    return store.request_chunk(source, key)  # type: ignore[arg-type]


def test_a_chunk_is_fetched_once_and_then_given_as_bytes() -> None:
    source = Source()
    with chunk_store(1000) as store:
        first = request(store, source, 20)
        assert isinstance(first, Future) and first.result() == b"\x14" * 10
        assert request(store, source, 20) == b"\x14" * 10
    assert source.offsets_read == [20] and store.fetched == 10


def test_a_fetch_that_failed_is_started_again_by_the_next_request() -> None:
    source = Source(20)
    with chunk_store(1000) as store:
        failed = request(store, source, 20)
        assert isinstance(failed, Future)
        with pytest.raises(OSError, match="reset"):
            failed.result()
        again = request(store, source, 20)
        assert isinstance(again, Future) and again.result() == b"\x14" * 10
    assert source.offsets_read == [20, 20] and store.fetched == 10


def test_chunks_used_least_recently_are_dropped_where_memory_ends() -> None:
    source = Source()
    with chunk_store(200) as store:
        for begin in range(0, 200, 10):
            requested = request(store, source, begin)
            assert isinstance(requested, Future)
            requested.result()
        assert request(store, source, 0) == b"\x00" * 10  # used again: the second is the oldest now
        extra = request(store, source, 200)
        assert isinstance(extra, Future)
        extra.result()
        assert isinstance(request(store, source, 0), bytes)
        assert isinstance(request(store, source, 10), Future)
