"""What every store must do. A test class derives from one of the contracts and gives a fixture `store`."""

from __future__ import annotations

import mmap
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from hyperpod_kit.checkpoint.repository.store.base import ALIGN, Store, Unsupported

KIB = 1024


def aligned(data: bytes) -> memoryview:
    """The same bytes at the beginning of a page."""
    held = mmap.mmap(-1, max(len(data), 1))
    held[: len(data)] = data
    return memoryview(held)[: len(data)]


def put(store: Store, name: str, data: bytes, piece: int) -> None:
    writer = store.open_write(name, len(data))
    view = aligned(data)
    for at in range(0, len(data), piece):
        writer.write(view[at : at + piece], at)
    writer.finish()


def get(store: Store, name: str, piece: int) -> bytes:
    reader = store.open_read(name)
    try:
        whole = aligned(bytes(reader.size))
        for begin in range(0, reader.size, piece):
            done, end = begin, min(begin + piece, reader.size)
            while done < end:
                got = reader.read_into(whole[done:end], done)
                assert got > 0
                done += got
        assert reader.read_into(memoryview(bytearray(10)), reader.size) == 0
        return bytes(whole)
    finally:
        reader.close()
        reader.close()


class StoreContract:
    """One suite over memory, file systems, Mountpoint and S3."""

    part = 16 * KIB
    """Bytes that are written at once; S3 has larger ones."""

    def test_what_was_created_can_be_read_and_is_not_made_twice(self, store: Store) -> None:
        store.create("RUN.json", b"first")
        with pytest.raises(FileExistsError):
            store.create("RUN.json", b"second")
        assert store.read("RUN.json") == b"first" and store.exists("RUN.json")
        store.create("a.d/MANIFEST.json", b"{}")
        assert store.list() == ["RUN.json", "a.d/"] and store.list("a.d") == ["MANIFEST.json"]

    def test_what_is_not_there(self, store: Store) -> None:
        assert store.list() == [] and store.list("nothing") == []
        assert not store.exists("nothing") and not store.exists("nothing/at/all")
        for call in (store.read, store.open_read):
            with pytest.raises(FileNotFoundError):
                call("nothing")
        if store.capabilities.delete:
            store.delete("nothing")
            store.delete("nothing/")

    def test_listing_is_ordered_direct_and_begins_after_a_name(self, store: Store) -> None:
        for name in ("b", "a/x", "a/y", "a.BAD", "c/z", "ab"):
            store.create(name, b".")
        assert store.list() == sorted(["a.BAD", "a/", "ab", "b", "c/"])
        assert store.list(after="a/") == ["ab", "b", "c/"]
        assert store.list("a", after="x") == ["y"]
        assert store.list(after="zz") == []

    @pytest.mark.parametrize("size", [1, ALIGN - 1, ALIGN, 3 * ALIGN + 17])
    def test_a_large_object_comes_back_as_it_was(self, store: Store, size: int) -> None:
        data = random.Random(size).randbytes(size)
        put(store, "d/shard", data, ALIGN)
        assert store.read("d/shard", len(data)) == data
        assert get(store, "d/shard", ALIGN) == data
        assert get(store, "d/shard", 1000) == data  # unaligned places and addresses

    def test_many_parts(self, store: Store) -> None:
        data = random.Random(1).randbytes(3 * self.part + 4321)
        put(store, "whole", data, self.part)
        put(store, "odd", data, self.part // 3 + 1)
        assert get(store, "whole", self.part) == data == get(store, "odd", self.part)

    def test_reads_from_several_threads(self, store: Store) -> None:
        data = random.Random(4).randbytes(64 * KIB)
        store.create("x", data)
        reader = store.open_read("x")

        def part(at: int) -> bytes:
            view = aligned(bytes(ALIGN))
            assert reader.read_into(view, at) == ALIGN
            return bytes(view)

        with ThreadPoolExecutor(4) as pool:
            assert b"".join(pool.map(part, range(0, len(data), ALIGN))) == data
        reader.close()

    def test_a_large_object_is_not_made_twice(self, store: Store) -> None:
        put(store, "d/shard", b"first", 5)
        with pytest.raises(FileExistsError):
            put(store, "d/shard", b"other", 5)
        assert store.read("d/shard") == b"first"

    def test_a_writer_that_gives_up_leaves_nothing(self, store: Store) -> None:
        writer = store.open_write("d/shard", 2 * self.part)
        writer.write(aligned(bytes(self.part)), 0)
        writer.abort()
        assert not store.exists("d/shard")
        put(store, "d/shard2", b"next", 4)
        assert store.read("d/shard2") == b"next"

    def test_a_file_that_is_not_whole_is_not_finished(self, store: Store) -> None:
        writer = store.open_write("d/shard", 2 * self.part)
        writer.write(aligned(bytes(self.part)), 0)
        with pytest.raises(OSError):
            writer.finish()
        writer.abort()
        assert not store.exists("d/shard")

    def test_one_of_many_creates_a_name(self, store: Store) -> None:
        def claim(number: int) -> int:
            try:
                store.create("epoch-000001.json", f"{number}".encode() * 10)
                return 1
            except FileExistsError:
                return 0

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(claim, range(8))) == 1
        assert len(set(store.read("epoch-000001.json"))) == 1

    def test_hints_are_replaced_where_that_is_possible(self, store: Store) -> None:
        if not store.capabilities.overwrite:
            with pytest.raises(Unsupported):
                store.overwrite_non_atomically("LATEST", b"1")
            return
        for data in (b"a long one", b"short", b""):
            store.overwrite_non_atomically("LATEST", data)
            assert store.read("LATEST") == data

    def test_deleting(self, store: Store) -> None:
        for name in ("d/a", "d/b"):
            store.create(name, b".")
        try:
            store.delete("d/a")
        except Unsupported:
            assert not store.capabilities.delete and store.exists("d/a")
            with pytest.raises(Unsupported):
                store.delete("d/b")
            return
        assert store.list("d") == ["b"]
        store.delete("d/")  # not empty: stays
        assert store.read("d/b") == b"."
        store.delete("d/b")
        store.delete("d/")
        assert store.list() == [] and not store.exists("d/b")

    def test_sizes_of_what_lies_there(self, store: Store) -> None:
        for name, size in (("d/a", 0), ("d/b", 5), ("d.x", 1)):
            store.create(name, bytes(size))
        put(store, "d/large", bytes(3 * ALIGN + 17), self.part)
        assert store.sizes("d") == {"a": 0, "b": 5, "large": 3 * ALIGN + 17}
        assert store.sizes("nothing") == {}

    def test_many_are_deleted_and_what_is_not_there_is_fine(self, store: Store) -> None:
        for name in ("d/a", "d/b & <c>", "d/d", "d/\u00e9"):
            store.create(name, b".")
        try:
            store.delete_all(["d/a", "d/nothing", "d/b & <c>", "d/\u00e9"])
        except Unsupported:
            assert not store.capabilities.delete and len(store.list("d")) == 4
            return
        assert store.list("d") == ["d"]
        store.delete_all(["d/d"])
        store.delete_all([])
        assert store.list("d") == []

    def test_names_stay_below_the_root(self, store: Store) -> None:
        for name in ("../x", "a//b", "/etc/passwd", "a/../../x", "", "a/.", "x\0y"):
            with pytest.raises(ValueError):
                store.create(name, b"")


class ParallelStoreContract(StoreContract):
    """Of a store that does not have to be written front to back."""

    def test_parts_from_several_threads_in_any_order(self, store: Store) -> None:
        assert store.capabilities.parallel_write
        data = aligned(random.Random(2).randbytes(4 * self.part + 99))
        writer = store.open_write("d/shard", len(data))
        places = list(range(0, len(data), self.part))
        random.Random(3).shuffle(places)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda at: writer.write(data[at : at + self.part], at), places))
        writer.finish()
        assert store.read("d/shard", len(data)) == data
