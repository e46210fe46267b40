"""The operations that the repository needs of a storage, and what a storage can say about itself.

A name is relative to the root, its parts separated by "/". Nothing here renames or overwrites what was written once;
`replace` is for hints whose loss costs time only. Errors are OSError as the operating system would have them:
FileNotFoundError, FileExistsError, PermissionError, otherwise with the errno that fits best.
"""

from __future__ import annotations

import errno
from typing import Dict, Iterable, List, NamedTuple, Optional, Protocol, Sequence

from hyperpod_kit.errors import CheckpointError, Untrusted

ALIGN = 4096
"""Address, offset and length of direct I/O are multiples of this."""


SMALL = 16 * 1024 * 1024
"""No small object is larger (the manifest of 100,000 ranks has this size), unless something proved says its size."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a storage, or of its user's share of it, that is full."""


class Unsupported(CheckpointError):
    """The storage cannot do that, or does not let us."""


class NotAnObject(CheckpointError, Untrusted):
    """What lies under a name is nothing that this storage has made: a link, a fifo, a directory, a device; or it is
    larger than it can be. That is damage, not a storage that failed: reading again gives the same."""


class Capabilities(NamedTuple):
    """What a storage can do. Those that cannot be known beforehand turn False at the first refusal.

    `delete`, `overwrite`: of what is there. `direct`: O_DIRECT writes worked in a probe. `local`: a look-up costs
    microseconds, so nothing needs to be saved. `parallel_write`: one StoreWriter may be used from several threads, and
    its pieces may come in any order.
    """

    delete: bool
    overwrite: bool
    direct: bool
    local: bool
    parallel_write: bool


class StoreReader(Protocol):
    """An object that is read at any place, from several threads.

    `size` in bytes. `align`: 1, or ALIGN where reads go past the page cache; a view whose address, offset and length
    are multiples of it is then filled without a copy, any other one too, only slower.
    """

    size: int
    align: int

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a part of `view` from `offset` on; how many bytes, 0 at the end. Raises OSError."""
        ...

    def close(self) -> None:
        """Release the object; a second call does nothing."""
        ...


class StoreWriter(Protocol):
    """A new object of a size that was said before. It counts for nothing until `finish` has returned.

    `align` as in StoreReader. Either `finish` or `abort` is called, once; `abort` after a failed `finish` is fine.
    """

    align: int

    def write(self, view: memoryview, offset: int) -> None:
        """Put all of `view` at `offset`; without `parallel_write` pieces follow one another. Raises OSError."""
        ...

    def finish(self) -> None:
        """Complete the object: it is visible and its bytes are durable afterwards; its name is after `Store.sync`.
        Raise OSError."""
        ...

    def abort(self) -> None:
        """Give up; leave no object where the storage can avoid it. Raise nothing."""
        ...


class Store(Protocol):
    """A checkpoint root. Safe for threads. `url`: what `open_store` makes it from again."""

    url: str

    @property
    def capabilities(self) -> Capabilities:
        """What this storage can do, as far as it is known by now."""
        ...

    def list(self, prefix: str = "", *, after: str = "", until: str = "") -> List[str]:
        """Names of the direct children of `prefix`, directories with a "/" at the end, ascending.

        Only those greater than `after` and, where it is given, not greater than `until`. Nothing there is an empty
        list. Raises NotAnObject when `prefix` is there and no directory, OSError.
        """
        ...

    def sizes(self, prefix: str) -> Dict[str, int]:
        """Bytes of each object that is a direct child of `prefix`, by its name there. Nothing is opened.

        What is no object is left out. Nothing there is an empty dict. Raises as `list` does.
        """
        ...

    def exists(self, name: str) -> bool:
        """Return whether there is an object of that name. Raise OSError when that cannot be determined."""
        ...

    def read(self, name: str, most: int = SMALL) -> bytes:
        """Return the content of a small object. Raise FileNotFoundError, NotAnObject (larger than `most`, or no
        file), OSError."""
        ...

    def open_read(self, name: str) -> StoreReader:
        """Open a large object for reading. Raise FileNotFoundError, NotAnObject, OSError."""
        ...

    def drop_cached_pages(self, name: str) -> None:
        """Drop this machine's cached pages of an object, so that what is read of it next comes from where it is
        stored.

        Where that cannot be had nothing happens, and what is read is what others would read too. Raise nothing.
        """
        ...

    def link_target(self, name: str) -> Optional[str]:
        """Return where a directory leads to that is a link, None when it is none. Nothing is deleted through one."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Make a small new object, durable and complete when this returns.

        Raises FileExistsError, NotAnObject when its directory is a link, OSError.
        """
        ...

    def open_write(self, name: str, size: int) -> StoreWriter:
        """Begin a large new object of `size` bytes. Raises FileExistsError (or `finish` does), OSError."""
        ...

    def sync(self, folder: str) -> None:
        """Make durable the name of `folder` and of each object that is in it, whichever machine made it: called once a
        checkpoint, where each of its thousands of writers would have to. Raises OSError.
        """
        ...

    def overwrite_non_atomically(self, name: str, data: bytes) -> None:
        """Make or overwrite a hint; a crash may leave it torn. Raises Unsupported, NotAnObject, OSError."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object, or, where there are such, the empty directory "name/". What is not there is fine.

        Raises Unsupported when the storage does not let us, NotAnObject when its directory is a link, OSError.
        """
        ...

    def delete_all(self, names: Sequence[str]) -> None:
        """`delete` of each of these objects, with as few calls as the storage has for it.

        Ends with the first failure; what was deleted before it is.
        """
        ...


def sort_names_between(names: Iterable[str], after: str, until: str) -> List[str]:
    """Return the names after `after` and up to `until`, sorted, as `Store.list` does."""
    return sorted(name for name in names if name > after and not (until and name > until))


def require_name_below_root(name: str) -> str:
    """Return `name` if it stays below the root. Raise ValueError otherwise: a name is the kit's, never a user's
    input."""
    if name.endswith("/"):
        parts = name[:-1].split("/")
    else:
        parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"{name!r} is not a name below a checkpoint root")
    return name
