"""Objects in this process's memory: for tests, and for what is not worth a directory."""

from __future__ import annotations

import threading
from typing import Dict, List, Sequence

from hyperpod_kit.checkpoint.repository.store.base import (
    SMALL,
    Capabilities,
    NotAnObject,
    StoreReader,
    StoreWriter,
    require_name_below_root,
    sort_names_between,
)
from hyperpod_kit.untrusted.files import too_large_error


class BytesReader:
    """Reads bytes."""

    align = 1

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size = len(data)

    def read_into(self, view: memoryview, offset: int) -> int:
        """See StoreReader."""
        part = self._data[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """See StoreReader."""


class MemoryStore:
    """See Store. Objects appear when they are complete, as in S3."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._objects: Dict[str, bytes] = {}

    @property
    def capabilities(self) -> Capabilities:
        """All that memory can do."""
        return Capabilities(delete=True, overwrite=True, direct=False, local=True, parallel_write=True)

    def list(self, prefix: str = "", *, after: str = "", until: str = "") -> List[str]:
        """See Store."""
        start = ""
        if prefix:
            start = prefix + "/"
        children = set()
        with self._lock:
            for name in self._objects:
                if name.startswith(start):
                    first, slash, _ = name[len(start) :].partition("/")
                    children.add(first + slash)
        return sort_names_between(children, after, until)

    def sizes(self, prefix: str) -> Dict[str, int]:
        """See Store."""
        with self._lock:
            below = {name.rpartition("/"): len(data) for name, data in self._objects.items()}
        return {last: size for (folder, _, last), size in below.items() if folder == prefix}

    def exists(self, name: str) -> bool:
        """See Store."""
        with self._lock:
            return require_name_below_root(name) in self._objects

    def read(self, name: str, most: int = SMALL) -> bytes:
        """See Store."""
        data = self._get_object_bytes(name)
        if len(data) > most:
            raise too_large_error(name, len(data), most, NotAnObject)
        return data

    def _get_object_bytes(self, name: str) -> bytes:
        with self._lock:
            data = self._objects.get(require_name_below_root(name))
        if data is None:
            raise FileNotFoundError(2, "no such object", f"{self.url}/{name}")
        return data

    def open_read(self, name: str) -> StoreReader:
        """See Store."""
        return BytesReader(self._get_object_bytes(name))

    def drop_cached_pages(self, name: str) -> None:
        """See Store: this is where it is stored."""

    def link_target(self, name: str) -> None:
        """See Store: never."""

    def create(self, name: str, data: bytes) -> None:
        """See Store."""
        with self._lock:
            if require_name_below_root(name) in self._objects:
                raise FileExistsError(17, "the object is there", f"{self.url}/{name}")
            self._objects[name] = bytes(data)

    def open_write(self, name: str, size: int) -> StoreWriter:
        """See Store."""
        if self.exists(name):
            raise FileExistsError(17, "the object is there", f"{self.url}/{name}")
        return _MemoryWriter(self, name, size)

    def sync(self, folder: str) -> None:
        """See Store: nothing here outlives the process."""

    def overwrite_non_atomically(self, name: str, data: bytes) -> None:
        """See Store."""
        with self._lock:
            self._objects[require_name_below_root(name)] = bytes(data)

    def delete(self, name: str) -> None:
        """See Store."""
        with self._lock:
            self._objects.pop(require_name_below_root(name), None)

    def delete_all(self, names: Sequence[str]) -> None:
        """See Store."""
        for name in names:
            self.delete(name)


class _MemoryWriter:
    align = 1

    def __init__(self, store: MemoryStore, name: str, size: int) -> None:
        self._store = store
        self._name = name
        self._data = bytearray(size)
        self._lock = threading.Lock()
        self._written = 0

    def write(self, view: memoryview, offset: int) -> None:
        with self._lock:
            if offset + len(view) > len(self._data):
                raise OSError(27, f"byte {offset + len(view)} of {len(self._data)}", self._name)
            self._data[offset : offset + len(view)] = view
            self._written += len(view)

    def finish(self) -> None:
        if self._written != len(self._data):
            raise OSError(5, f"{self._written} bytes were written, expected {len(self._data)}", self._name)
        self._store.create(self._name, bytes(self._data))

    def abort(self) -> None:
        self._data = bytearray()


_ROOTS: Dict[str, MemoryStore] = {}
_ROOTS_LOCK = threading.Lock()


def get_or_create_memory_store(url: str) -> MemoryStore:
    """Return the store of that URL, the same one for every caller in this process."""
    with _ROOTS_LOCK:
        return _ROOTS.setdefault(url, MemoryStore(url))
