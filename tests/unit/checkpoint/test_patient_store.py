"""A restore reads again what storage did not give up, for a while, and then says what it always said."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Callable, List

import pytest
import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.repository.store import retrying
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.repository.store.posix import FileReader, PosixStore
from hyperpod_kit.checkpoint.repository.store.retrying import TRIES, RetryingStore
from hyperpod_kit.errors import CheckpointError, StorageUnreadable
from hyperpod_kit.system.passing_errors import PASSING
from hyperpod_kit.system.wait import BackOff


class Fault:
    """Fails the first `times` calls that it is asked about."""

    def __init__(self, number: int, times: int) -> None:
        self.number, self.left, self.failed = number, times, 0

    def __call__(self, *_: object) -> None:
        if self.left > 0:
            self.left -= 1
            self.failed += 1
            raise OSError(self.number, "as storage says it")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir()
    store = open_store(str(tmp_path / "root"))
    store.create("a/object", b"0123456789")
    return store


def failing(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, fault: Callable[..., None]) -> None:
    real = getattr(kind, method)

    def call(self: object, *args: object, **words: object) -> object:
        fault(*args)
        return real(self, *args, **words)

    monkeypatch.setattr(kind, method, call)


def read_all(store: Store) -> bytes:
    reader = store.open_read("a/object")
    data = bytearray(reader.size)
    count = reader.read_into(memoryview(data), 0)
    reader.close()
    return bytes(data[:count])


READS: List[tuple[type, str, Callable[[Store], object], object]] = [
    (PosixStore, "read", lambda store: store.read("a/object"), b"0123456789"),
    (PosixStore, "list", lambda store: store.list("a"), ["object"]),
    (PosixStore, "sizes", lambda store: store.sizes("a"), {"object": 10}),
    (PosixStore, "exists", lambda store: store.exists("a/object"), True),
    (PosixStore, "open_read", read_all, b"0123456789"),
    (FileReader, "read_into", read_all, b"0123456789"),
]


@pytest.mark.parametrize(("kind", "method", "read", "value"), READS, ids=[method for _, method, _, _ in READS])
def test_every_read_is_tried_again(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    method: str,
    read: Callable[[Store], object],
    value: object,
) -> None:
    for number in sorted(PASSING):
        pauses: List[float] = []
        fault = Fault(number, TRIES - 1)
        with monkeypatch.context() as faulty:
            failing(faulty, kind, method, fault)
            assert read(RetryingStore(store, sleep=pauses.append)) == value
        assert (fault.failed, len(pauses)) == (TRIES - 1, TRIES - 1)
        assert pauses == sorted(pauses) and sum(pauses) < 10.0
    with monkeypatch.context() as faulty:
        failing(faulty, kind, method, Fault(errno.EIO, 100))
        with pytest.raises(OSError, match="as storage says it"):
            read(RetryingStore(store, sleep=lambda _: None))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOENT, errno.ENOSPC])
def test_what_does_not_pass_is_said_at_once(store: Store, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fault = Fault(number, 100)
    failing(monkeypatch, PosixStore, "read", fault)
    with pytest.raises(OSError, match="as storage says it"):
        RetryingStore(store).read("a/object")
    assert fault.failed == 1


def test_a_stale_descriptor_is_replaced_and_another_object_is_none(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After the repair of a mount: the object under its name is there, the descriptor is not."""
    patiently = RetryingStore(store, sleep=lambda _: None)
    reader, other = patiently.open_read("a/object"), patiently.open_read("a/object")
    stale = {id(found._reader) for found in (reader, other)}  # type: ignore[attr-defined]

    def of_before(self: FileReader, view: memoryview, offset: int) -> int:
        if id(self) in stale:
            raise OSError(errno.ESTALE, "stale")
        view[:] = b"new descriptor"[: len(view)]
        return len(view)

    monkeypatch.setattr(FileReader, "read_into", of_before)
    data = bytearray(10)
    assert reader.read_into(memoryview(data), 0) == 10 and data == b"new descri"
    (tmp_path / "root/a/object").write_bytes(b"longer than it was")
    with pytest.raises(CheckpointError, match="has 18 bytes now, expected 10"):
        other.read_into(memoryview(data), 0)
    reader.close()
    other.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Manager(str(tmp_path / "run")) as manager:
        state = State(torch.nn.Linear(100, 100))
        manager.restore(state)
        for step in (1, 2):
            assert manager.save(step, state, on_busy="wait").wait("durable", 60)
    return tmp_path / "run"


@pytest.mark.full
def test_one_error_at_any_read_of_a_restore_costs_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "PAUSES", BackOff(0.001, 0.001))
    newest = catalog.newest_committed(str(root))
    for kind, method in (
        (PosixStore, "read"),
        (PosixStore, "open_read"),
        (PosixStore, "list"),
        (FileReader, "read_into"),
    ):
        skipped = 0
        while True:  # the first call, the second, … until one restore has no more of them
            fault = Fault(errno.EIO, 1)
            calls = 0

            def once_in_a_while(*args: object, fault: Fault = fault, skip: int = skipped) -> None:
                nonlocal calls
                calls += 1
                if calls > skip:
                    fault(*args)

            with Manager(str(root)) as manager, monkeypatch.context() as faulty:
                failing(faulty, kind, method, once_in_a_while)
                found = manager.restore(State(torch.nn.Linear(100, 100)))
            assert isinstance(found, Restored) and (found.checkpoint_id, found.rejected) == (newest, ())
            if not fault.failed:
                break
            skipped += 1
        assert skipped, f"a restore calls {method}"


def test_an_error_that_lasts_is_what_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "PAUSES", BackOff(0.001, 0.001))
    with Manager(str(root)) as manager, monkeypatch.context() as faulty:
        failing(faulty, FileReader, "read_into", Fault(errno.EIO, 10**6))
        with pytest.raises(StorageUnreadable, match="as storage says it"):
            manager.restore(State(torch.nn.Linear(100, 100)))
