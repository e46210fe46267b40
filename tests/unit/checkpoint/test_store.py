from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.checkpoint.repository.store import durable, open, posix
from hyperpod_kit.checkpoint.repository.store.base import ALIGN, NotAnObject, Store
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.checkpoint.repository.store.posix import FileReader, PosixStore
from hyperpod_kit.checkpoint.repository.store.restricted import RestrictedStore
from hyperpod_kit.errors import CheckpointError
from tests.unit.checkpoint.store_contract import ParallelStoreContract, StoreContract, aligned, get, put


class TestMemory(ParallelStoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore("memory://test")


class TestPosix(ParallelStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return PosixStore(str(tmp_path))


class TestPosixWithoutDirectIoAndUnnamedFiles(ParallelStoreContract):
    """NFS-like: neither O_DIRECT nor O_TMPFILE."""

    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setattr(durable, "create_unnamed_then_link", lambda *_: False)
        monkeypatch.setattr(posix, "can_write_direct", lambda *_: False)
        monkeypatch.setattr(posix, "open_direct_for_reading", lambda *_: -1)
        return PosixStore(str(tmp_path))


class TestSharedMemory(ParallelStoreContract):
    """A file system in memory; whether it takes O_DIRECT depends on the kernel."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hpk-store-test-") as folder:
            yield PosixStore(folder)


class TestRestricted(StoreContract):
    """What is written to Mountpoint, on a file system that would allow more; the real rules are rehearsed apart."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return RestrictedStore(str(tmp_path))


def test_the_probe_leaves_nothing_and_readers_write_nothing(tmp_path: Path) -> None:
    store = PosixStore(str(tmp_path))
    (tmp_path / "x").write_bytes(bytes(2 * ALIGN))
    before = os.stat(tmp_path).st_mtime_ns
    get(store, "x", ALIGN)
    assert os.stat(tmp_path).st_mtime_ns == before and not store.capabilities.direct
    put(store, "y", bytes(ALIGN), ALIGN)
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]


def test_the_probe_without_unnamed_files_removes_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def without(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no unnamed files")
        return real(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", without)
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    posix.can_write_direct(folder)
    os.close(folder)
    assert os.listdir(tmp_path) == []


def test_a_view_that_does_not_suit_direct_io_is_filled_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(os.urandom(3 * ALIGN))
    reader = FileReader(str(path))
    buffer = memoryview(bytearray(2 * ALIGN + 1))[1:]
    done = 0
    while done < len(buffer):
        done += reader.read_into(buffer[done:], done)
    assert buffer == path.read_bytes()[: 2 * ALIGN]
    reader.close()


def test_a_root_that_vanished_is_not_made_again(tmp_path: Path) -> None:
    store = PosixStore(str(tmp_path / "root"))
    with pytest.raises(FileNotFoundError):
        store.create("attempt/MANIFEST.json", b"")
    with pytest.raises(FileNotFoundError):
        store.open_write("attempt/shard", 1)
    assert os.listdir(tmp_path) == []


def test_a_root_that_is_a_file_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(NotADirectoryError):
        PosixStore(str(tmp_path / "root")).list()


def test_a_fifo_is_no_shard(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "dir")
    with pytest.raises(NotAnObject, match="dir is a directory"):
        PosixStore(str(tmp_path)).open_read("dir")


def test_open_store_by_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open.open_store(str(tmp_path)), PosixStore)
    assert open.open_store("memory://one") is open.open_store("memory://one") is not open.open_store("memory://two")
    assert open.as_store(store := MemoryStore("memory://x")) is store
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw - ext4 /dev/root rw\n"
        "40 22 0:40 / /mnt/s3\\040data rw,nosuid shared:3 - fuse mountpoint-s3 rw,user_id=0\n"
        "41 40 0:41 / /mnt/s3\\040data/inner rw - tmpfs tmpfs rw\n"
        "torn line\n"
    )
    monkeypatch.setattr(open, "MOUNTINFO", str(table))
    assert isinstance(open.open_store("/mnt/s3 data/run"), RestrictedStore)
    assert type(open.open_store("/mnt/s3 data/inner/run")) is PosixStore
    assert type(open.open_store("/mnt/s3 database")) is PosixStore
    monkeypatch.setattr(open, "MOUNTINFO", str(tmp_path / "none"))
    assert type(open.open_store("/mnt/s3 data/run")) is PosixStore


def test_s3_without_boto3_needs_a_region_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CheckpointError, match="no AWS region is configured") as caught:
        open.open_store("s3://bucket/run")
    assert caught.value.hint == "export AWS_REGION=us-west-2"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert open.open_store("s3://bucket/run").url == "s3://bucket/run"


def test_front_to_back_means_just_that(tmp_path: Path) -> None:
    writer = RestrictedStore(str(tmp_path)).open_write("x", 8)
    writer.write(memoryview(b"abcd"), 0)
    with pytest.raises(OSError) as caught:
        writer.write(aligned(b"abcd"), 0)
    assert caught.value.errno == errno.EINVAL
    writer.abort()
    assert os.listdir(tmp_path) == []


def test_a_shard_of_which_a_part_was_never_written_is_an_error_although_its_blocks_are_reserved(tmp_path: Path) -> None:
    writer = PosixStore(str(tmp_path)).open_write("a/shard", 3 * 8192)
    data = memoryview(mmap.mmap(-1, 8192))
    for at in (0, 2 * 8192):
        writer.write(data, at)
    with pytest.raises(OSError, match="16384 bytes were written, expected 24576"):
        writer.finish()
