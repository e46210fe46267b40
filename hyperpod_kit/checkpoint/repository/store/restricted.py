"""A directory on Mountpoint for Amazon S3, or another file system that only takes new files written front to back.

Its rules (Mountpoint's doc/SEMANTICS.md): a new file is written in order, by one descriptor, and shows when it is
closed or synced; nothing is renamed, appended to or overwritten; files are deleted with --allow-delete only; a
directory shows elsewhere once something is in it. A write out of order gives the upload up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import Sequence

from hyperpod_kit.checkpoint.repository.store import durable, root_files
from hyperpod_kit.checkpoint.repository.store.base import (
    SMALL,
    Capabilities,
    NotAnObject,
    StoreReader,
    StoreWriter,
    Unsupported,
    require_name_below_root,
)
from hyperpod_kit.checkpoint.repository.store.posix import FileReader, NewFile, PosixStore


class SequentialWriter(NewFile):
    """Writes a new file front to back. `folder` is a descriptor of its directory, which is closed with it."""

    align = 1

    def __init__(self, folder: int, path: str, size: int) -> None:
        super().__init__(folder, path)
        self._size = size
        self._at = 0
        self._lock = threading.Lock()

    def write(self, view: memoryview, offset: int) -> None:
        """See StoreWriter. Raises OSError EINVAL when `offset` is not where the last piece ended."""
        with self._lock, root_files.describing_errors("written", self._path):
            if offset != self._at:
                raise OSError(errno.EINVAL, f"the next byte is {self._at}, not {offset}", self._path)
            durable.write_all(self._fd, view)
            self._at += len(view)

    def finish(self) -> None:
        """See StoreWriter: fsync completes the upload, and says whether that worked."""
        with root_files.describing_errors("written", self._path):
            if self._at != self._size:
                raise OSError(errno.EIO, f"{self._at} bytes were written, expected {self._size}", self._path)
            os.fsync(self._fd)
            self._close()

    def abort(self) -> None:
        """See StoreWriter. Closing would publish what is there so far, so the upload is broken first."""
        with contextlib.suppress(OSError):
            if self._fd >= 0:
                os.pwrite(self._fd, b"\\0", self._at + self._size + 1)
        self._discard()


class RestrictedStore(PosixStore):
    """See Store. `create` is exclusive among the users of one mount; a writer on another machine is noticed when the
    object is read back, unless it comes later still: one job at a time has a root (see `hyperpod-kit job run`)."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._delete = True

    @property
    def capabilities(self) -> Capabilities:
        """`delete` until it was refused."""
        return Capabilities(delete=self._delete, overwrite=False, direct=False, local=False, parallel_write=False)

    def _open_or_create_folder(self, name: str) -> int:
        """Return a descriptor of the directory in which `name` is to be made; make it, or the root, where it is
        missing. It is no link."""
        folder = require_name_below_root(name).rpartition("/")[0]
        if not folder:
            with contextlib.suppress(FileNotFoundError):
                return root_files.open_parent_folder(self.url, name)
            root_files.make_root(self.url)
        else:
            with root_files.opened_parent_folder(self.url, folder) as top, contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=top)
        return root_files.open_parent_folder(self.url, name)

    def open_read(self, name: str) -> StoreReader:
        """See Store."""
        return FileReader(self._path(name), cached=True)

    def create(self, name: str, data: bytes) -> None:
        """See Store."""
        writer = self.open_write(name, len(data))
        try:
            writer.write(memoryview(data), 0)
            writer.finish()
        except OSError:
            writer.abort()
            raise
        if self.read(name, max(SMALL, len(data))) != data:
            raise FileExistsError(errno.EEXIST, "another machine made it at the same time", name)

    def open_write(self, name: str, size: int) -> StoreWriter:
        """See Store."""
        path = self._path(name)
        with root_files.describing_errors("written", path):
            folder = self._open_or_create_folder(name)
            try:
                return SequentialWriter(folder, path, size)
            except OSError as err:
                os.close(folder)
                # Mountpoint answers EPERM for what may not be overwritten, and while another descriptor writes it.
                if err.errno == errno.EPERM and os.path.lexists(path):
                    raise FileExistsError(errno.EEXIST, "the file is there", path) from None
                raise

    def sync(self, folder: str) -> None:
        """See Store: an object is durable with its name."""

    def overwrite_non_atomically(self, name: str, data: bytes) -> None:
        """See Store: not here."""
        raise Unsupported(f"{self.url} does not overwrite")

    def delete(self, name: str) -> None:
        """See Store. The first refusal is remembered."""
        if name.endswith("/"):
            # One that exists because of its files goes with the last of them, and is refused before.
            with contextlib.suppress(OSError, NotAnObject), root_files.opened_parent_folder(self.url, name) as folder:
                os.rmdir(os.path.basename(self._path(name.rstrip("/"))), dir_fd=folder)
            return
        if not self._delete:
            raise Unsupported(f"{self.url} does not delete")
        try:
            super().delete(name)
        except Unsupported:
            self._delete = False
            raise

    def delete_all(self, names: Sequence[str]) -> None:
        """See Store."""
        for name in names:
            self.delete(name)
