"""A store whose reads are tried again where storage fails in a way that may pass (system/passing_errors.py).

A save that failed is followed by the next one; a restore has no next one but the start of the whole job. So what it
reads is asked for again, with pauses that grow, and then the error is what it was: who waits for longer (`job run`)
does so with the whole picture.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Callable, Dict, List, Optional, Sequence, TypeVar

from hyperpod_kit.checkpoint.repository.store.base import SMALL, Capabilities, Store, StoreReader, StoreWriter
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.system.passing_errors import PASSING
from hyperpod_kit.system.wait import BackOff

T = TypeVar("T")

PAUSES = BackOff(0.05, 2.0)
TRIES = 8
"""Together 7 seconds."""

log = logging.getLogger("hyperpod_kit.checkpoint")


def with_read_retries(store: Store) -> Store:
    """The same store, whose reads are tried again."""
    if isinstance(store, RetryingStore):
        return store
    return RetryingStore(store)


def without_read_retries(store: Store) -> Store:
    """The same store, whose reads are tried once: for hints that are not worth a pause."""
    if isinstance(store, RetryingStore):
        return store.store
    return store


class RetryingStore:
    """See Store. What it writes and deletes is tried once, as ever."""

    def __init__(self, store: Store, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.url = store.url
        self.store = store
        self._sleep = sleep

    def retry_read(self, name: str, read: Callable[[], T]) -> T:
        """Call `read` until it succeeds, with pauses, and return its result. Raise what it raises: an error that may
        pass after the last try, any other at once."""
        failures = 0
        while True:
            try:
                return read()
            except OSError as err:
                failures += 1
                if err.errno not in PASSING or failures >= TRIES:
                    raise
                pause = PAUSES.pause_seconds(failures)
                log.warning("%s/%s: %s; reading it again in %.2f s", self.url, name, err.strerror or err, pause)
                self._sleep(pause)

    @property
    def capabilities(self) -> Capabilities:
        """See Store."""
        return self.store.capabilities

    def list(self, prefix: str = "", *, after: str = "", until: str = "") -> List[str]:
        """See Store."""
        return self.retry_read(prefix, lambda: self.store.list(prefix, after=after, until=until))

    def sizes(self, prefix: str) -> Dict[str, int]:
        """See Store."""
        return self.retry_read(prefix, lambda: self.store.sizes(prefix))

    def exists(self, name: str) -> bool:
        """See Store."""
        return self.retry_read(name, lambda: self.store.exists(name))

    def read(self, name: str, most: int = SMALL) -> bytes:
        """See Store."""
        return self.retry_read(name, lambda: self.store.read(name, most))

    def open_read(self, name: str) -> StoreReader:
        """See Store."""
        return RetryingReader(self, name, self.retry_read(name, lambda: self.store.open_read(name)))

    def open_read_once(self, name: str) -> StoreReader:
        """Open the object for reading, in one try. Raise as `open_read`."""
        return self.store.open_read(name)

    def drop_cached_pages(self, name: str) -> None:
        """See Store."""
        self.store.drop_cached_pages(name)

    def link_target(self, name: str) -> Optional[str]:
        """See Store."""
        return self.store.link_target(name)

    def create(self, name: str, data: bytes) -> None:
        """See Store."""
        self.store.create(name, data)

    def open_write(self, name: str, size: int) -> StoreWriter:
        """See Store."""
        return self.store.open_write(name, size)

    def sync(self, folder: str) -> None:
        """See Store."""
        self.store.sync(folder)

    def overwrite_non_atomically(self, name: str, data: bytes) -> None:
        """See Store."""
        self.store.overwrite_non_atomically(name, data)

    def delete(self, name: str) -> None:
        """See Store."""
        self.store.delete(name)

    def delete_all(self, names: Sequence[str]) -> None:
        """See Store."""
        self.store.delete_all(names)


class RetryingReader:
    """See StoreReader. After a failure the object is opened anew: a descriptor of a mount that was repaired is stale
    for ever. Others may still read with the earlier one, so all are closed at the end."""

    def __init__(self, store: RetryingStore, name: str, reader: StoreReader) -> None:
        self._store = store
        self._name = name
        self._reader = reader
        self._opened = [reader]
        self._lock = threading.Lock()
        self.size = reader.size
        self.align = reader.align

    def read_into(self, view: memoryview, offset: int) -> int:
        """See StoreReader. Raises CheckpointError where the object is another one now, OSError."""
        failed: Optional[StoreReader] = None

        def read() -> int:
            nonlocal failed
            if failed is not None:
                self._reopen_after_failure(failed)
            failed = self._reader
            return self._reader.read_into(view, offset)

        return self._store.retry_read(self._name, read)

    def _reopen_after_failure(self, failed: StoreReader) -> None:
        with self._lock:
            if self._reader is not failed:
                return
            reader = self._store.open_read_once(self._name)
            self._opened.append(reader)
            if reader.size != self.size:
                raise CheckpointError(f"{self._name} has {reader.size} bytes now, expected {self.size}")
            self._reader = reader

    def close(self) -> None:
        """See StoreReader."""
        for reader in self._opened:
            reader.close()
