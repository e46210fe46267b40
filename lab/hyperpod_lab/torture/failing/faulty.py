"""A storage whose n-th operation fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hyperpod_kit.checkpoint.repository.store.base import SMALL, Capabilities, Store, StoreReader, StoreWriter


@dataclass(frozen=True)
class FailureKind:
    """How an operation fails: with which errno, and what of it has happened by then.

    `leaves`: "nothing"; "half" of the bytes (a short write: of an object that is made in one go, a torn object); "all"
    (it worked, only its answer was lost). `lasting`: every later operation fails too, as on a full disk.
    """

    name: str
    number: int
    leaves: str = "nothing"
    lasting: bool = False

    def __str__(self) -> str:
        if self.lasting:
            return f"{self.name} from then on"
        return self.name


_ONCE = (
    FailureKind("EIO", errno.EIO),
    FailureKind("ENOSPC", errno.ENOSPC),
    FailureKind("EDQUOT", errno.EDQUOT),
    FailureKind("short write", errno.ENOSPC, "half"),
    FailureKind("lost answer", errno.EIO, "all"),
)
KINDS = _ONCE + tuple(FailureKind(kind.name, kind.number, kind.leaves, True) for kind in _ONCE)


class FaultyStore:
    """`inner`, with the `at`-th operation from now on failing as `kind` says; 0: none. Counts from 1."""

    def __init__(self, inner: Store, kind: FailureKind, at: int) -> None:
        self.inner = inner
        self.url = inner.url
        self.kind = kind
        self.at = at
        self.operations = 0
        self.failed: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def _must_last_counted_operation_fail(self) -> bool:
        """Whether the operation that is counted last is one that fails."""
        if not self.at:
            return False
        if self.operations == self.at:
            return True
        return self.kind.lasting and self.operations > self.at

    def run_or_fail(self, what: str, work: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        """Count one operation; run it, or fail in it as `kind` says."""
        self.operations += 1
        if not self._must_last_counted_operation_fail():
            return work()
        self.failed.append(what)
        if self.kind.leaves == "all":
            work()
        elif self.kind.leaves == "half" and half is not None:
            half()
        raise OSError(self.kind.number, os.strerror(self.kind.number), what)

    def list(self, prefix: str = "", *, after: str = "", until: str = "") -> list[str]:
        names: list[str] = self.run_or_fail(f"list {prefix}", lambda: self.inner.list(prefix, after=after, until=until))
        return names

    def sizes(self, prefix: str) -> dict[str, int]:
        return dict(self.run_or_fail(f"sizes in {prefix}", lambda: self.inner.sizes(prefix)))

    def exists(self, name: str) -> bool:
        return bool(self.run_or_fail(f"exists {name}", lambda: self.inner.exists(name)))

    def read(self, name: str, most: int = SMALL) -> bytes:
        return bytes(self.run_or_fail(f"read {name}", lambda: self.inner.read(name, most)))

    def drop_cached_pages(self, name: str) -> None:
        self.inner.drop_cached_pages(name)

    def link_target(self, name: str) -> str | None:
        return self.inner.link_target(name)

    def open_read(self, name: str) -> StoreReader:
        return _FaultyReader(self, self.run_or_fail(f"open {name}", lambda: self.inner.open_read(name)), name)

    def create(self, name: str, data: bytes) -> None:
        self.run_or_fail(
            f"create {name}",
            lambda: self.inner.create(name, data),
            lambda: self.inner.create(name, data[: len(data) // 2]),
        )

    def open_write(self, name: str, size: int) -> StoreWriter:
        return _FaultyWriter(
            self, self.run_or_fail(f"open for writing {name}", lambda: self.inner.open_write(name, size)), name
        )

    def sync(self, folder: str) -> None:
        self.run_or_fail(f"sync {folder}", lambda: self.inner.sync(folder))

    def overwrite_non_atomically(self, name: str, data: bytes) -> None:
        self.run_or_fail(
            f"replace {name}",
            lambda: self.inner.overwrite_non_atomically(name, data),
            lambda: self.inner.overwrite_non_atomically(name, data[: len(data) // 2]),
        )

    def delete(self, name: str) -> None:
        self.run_or_fail(f"delete {name}", lambda: self.inner.delete(name))

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)


class _FaultyReader:
    def __init__(self, store: FaultyStore, inner: StoreReader, name: str) -> None:
        self._store = store
        self._inner = inner
        self._name = name
        self.size = inner.size
        self.align = inner.align

    def read_into(self, view: memoryview, offset: int) -> int:
        return int(
            self._store.run_or_fail(f"read {self._name} at {offset}", lambda: self._inner.read_into(view, offset))
        )

    def close(self) -> None:
        self._inner.close()


class _FaultyWriter:
    def __init__(self, store: FaultyStore, inner: StoreWriter, name: str) -> None:
        self._store = store
        self._inner = inner
        self._name = name
        self.align = inner.align

    def write(self, view: memoryview, offset: int) -> None:
        half = len(view) // 2 // max(self.align, 1) * max(self.align, 1)
        self._store.run_or_fail(
            f"write {self._name} at {offset}",
            lambda: self._inner.write(view, offset),
            lambda: self._inner.write(view[:half], offset),
        )

    def finish(self) -> None:
        self._store.run_or_fail(f"finish {self._name}", self._inner.finish)

    def abort(self) -> None:
        self._inner.abort()
