"""A directory on a POSIX file system: ext4, XFS, Lustre, NFS and EFS, tmpfs."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import threading
from typing import List, Optional, Tuple

from . import direct, durable
from .base import ALIGN, Capabilities, Reader, Unsupported, Writer, between, check_name

NOT_ALLOWED = (errno.EPERM, errno.EACCES, errno.EROFS)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class FileReader:
    """Reads a file, past the page cache where that works."""

    def __init__(self, path: str, *, cached: bool = False) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self.size = found.st_size
        self._direct = -1 if cached else direct.open_readable(path, self.size)
        self.align = 1 if self._direct < 0 else ALIGN

    def read_into(self, view: memoryview, offset: int) -> int:
        """See Reader."""
        whole = len(view) - len(view) % ALIGN
        if self._direct >= 0 and whole and offset % ALIGN == 0:
            try:
                return os.preadv(self._direct, [view[:whole]], offset)
            except OSError as err:
                # EINVAL: the view's address does not suit.
                if err.errno != errno.EINVAL:
                    raise
        return os.preadv(self._fd, [view], offset)

    def close(self) -> None:
        """See Reader."""
        for fd in (self._fd, self._direct):
            if fd >= 0:
                os.close(fd)
        self._fd = self._direct = -1


class FileWriter:
    """Writes a file that it has created, past the page cache where that works, with one descriptor.

    What is not a multiple of ALIGN is kept until `finish`, which writes it through the cache.
    """

    def __init__(self, path: str, size: int, *, past_cache: bool) -> None:
        self._path = path
        self._size = size
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._rest: List[Tuple[int, bytes]] = []
        self._written = 0
        self._lock = threading.Lock()
        self._direct = past_cache and size >= ALIGN and self._set_direct(True)
        self.align = ALIGN if self._direct else 1
        if self._direct:
            self._reserve()

    def _reserve(self) -> None:
        """Reserve the blocks (fallocate(2)): threads that make a file longer write one after the other (ext4 takes the
        inode's lock for it), those that fill what is reserved write side by side. A full disk is an error at once.

        Not os.posix_fallocate: where the file system cannot, glibc writes into every block instead.
        """
        if _libc.fallocate(self._fd, 0, 0, self._size) == 0:
            return
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            self.abort()
            raise OSError(number, os.strerror(number), self._path)

    def _set_direct(self, wanted: bool) -> bool:
        """Whether the file is now written past the cache, or not, as wanted."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
        except OSError:
            return not wanted
        return wanted

    def write(self, view: memoryview, offset: int) -> None:
        """See Writer; from several threads, in any order."""
        whole = len(view) - len(view) % ALIGN if self._direct and offset % ALIGN == 0 else len(view)
        if whole < len(view):
            self._rest.append((offset + whole, bytes(view[whole:])))
        done = 0
        while done < whole:
            direct = self._direct
            try:
                done += self._count(os.pwrite(self._fd, view[done:whole], offset + done))
            except OSError as err:
                # EINVAL: the view's address does not suit, or a short write ended in the middle of a block. Other
                # threads may be writing: their bytes are right either way.
                if err.errno != errno.EINVAL or not direct:
                    raise
                self._direct = self._set_direct(False)

    def _count(self, written: int) -> int:
        with self._lock:
            self._written += written
        return written

    def finish(self) -> None:
        """See Writer. A file of another size than it was opened with is an error."""
        if self._direct:
            self._direct = self._set_direct(False)
        for at, data in self._rest:
            done = 0
            while done < len(data):
                done += self._count(os.pwrite(self._fd, data[done:], at + done))
        # The size alone says nothing: it was reserved.
        if not self._written == self._size == os.fstat(self._fd).st_size:
            raise OSError(errno.EIO, f"{self._written} bytes were written, expected {self._size}", self._path)
        os.fsync(self._fd)
        self._close()
        durable.sync_directory(os.path.dirname(self._path))

    def abort(self) -> None:
        """See Writer."""
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class PosixStore:
    """See Store. Only an object at its top level makes the root: one that is missing later is a mount that is gone."""

    def __init__(self, root: str) -> None:
        self.url = os.path.abspath(root)
        self._lock = threading.Lock()
        self._synced: Optional[str] = None
        self._direct: Optional[bool] = None

    @property
    def capabilities(self) -> Capabilities:
        """`direct` is known once something was written."""
        return Capabilities(delete=True, overwrite=True, direct=bool(self._direct), local=True, parallel_write=True)

    def _path(self, name: str) -> str:
        return os.path.join(self.url, check_name(name))

    def _path_to_make(self, name: str) -> str:
        """The path of a new object, whose directory is there and durable."""
        path = self._path(name)
        folder = os.path.dirname(path)
        if folder == self.url:
            os.makedirs(folder, exist_ok=True)
            return path
        with self._lock:
            if self._synced != folder:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder)
                # Whoever made it may have died before it was on disk.
                durable.sync_directory(self.url)
                self._synced = folder
        return path

    def list(self, prefix: str = "", *, after: str = "", until: str = "") -> List[str]:
        """See Store. Takes types from the directory itself: nothing is looked up."""
        try:
            with os.scandir(self._path(prefix) if prefix else self.url) as entries:
                return between((entry.name + "/" if entry.is_dir() else entry.name for entry in entries), after, until)
        except FileNotFoundError:
            return []

    def exists(self, name: str) -> bool:
        """See Store."""
        try:
            os.lstat(self._path(name))
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False

    def read(self, name: str) -> bytes:
        """See Store."""
        with open(self._path(name), "rb") as file:
            return file.read()

    def open_read(self, name: str) -> Reader:
        """See Store."""
        return FileReader(self._path(name))

    def create(self, name: str, data: bytes) -> None:
        """See Store."""
        durable.write_once(self._path_to_make(name), data)

    def open_write(self, name: str, size: int) -> Writer:
        """See Store. The first call finds out whether O_DIRECT works."""
        path = self._path_to_make(name)
        if self._direct is None:
            self._direct = direct.can_write(os.path.dirname(path))
        return FileWriter(path, size, past_cache=self._direct)

    def replace(self, name: str, data: bytes) -> None:
        """See Store. In place: a reader may see it torn, and a hint that is torn is none."""
        fd = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            durable.write_all(fd, data)
        finally:
            os.close(fd)

    def delete(self, name: str) -> None:
        """See Store. A directory that is not empty is left as it is."""
        path = self._path(name)
        try:
            if name.endswith("/"):
                os.rmdir(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as err:
            if err.errno in NOT_ALLOWED:
                raise Unsupported(f"{path} cannot be removed: {err.strerror}") from None
            if not (name.endswith("/") and err.errno in (errno.ENOTEMPTY, errno.EEXIST)):
                raise
