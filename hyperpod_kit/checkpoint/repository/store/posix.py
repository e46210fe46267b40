"""A directory on a POSIX file system: ext4, XFS, Lustre, NFS and EFS, tmpfs."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import stat
import threading
from itertools import groupby
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.store import durable, root_files
from hyperpod_kit.checkpoint.repository.store.base import (
    ALIGN,
    SMALL,
    Capabilities,
    StoreReader,
    StoreWriter,
    Unsupported,
    require_name_below_root,
    sort_names_between,
)
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import files

NOT_ALLOWED = (errno.EPERM, errno.EACCES, errno.EROFS)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class FileReader:
    """Reads a file, past the page cache where that works."""

    def __init__(self, path: str, *, cached: bool = False, owner: Optional[int] = None) -> None:
        self._fd, status = root_files.open_to_read(path, owner=owner)
        self.size = status.st_size
        if cached:
            self._direct = -1
        else:
            self._direct = open_direct_for_reading(path, status)
        if self._direct < 0:
            self.align = 1
        else:
            self.align = ALIGN

    def read_into(self, view: memoryview, offset: int) -> int:
        """See StoreReader."""
        aligned_size = len(view) - len(view) % ALIGN
        if self._direct >= 0 and aligned_size and offset % ALIGN == 0:
            try:
                return os.preadv(self._direct, [view[:aligned_size]], offset)
            except OSError as err:
                # EINVAL: the view's address does not suit.
                if err.errno != errno.EINVAL:
                    raise
        return os.preadv(self._fd, [view], offset)

    def close(self) -> None:
        """See StoreReader."""
        for fd in (self._fd, self._direct):
            if fd >= 0:
                os.close(fd)
        self._fd = self._direct = -1


class NewFile:
    """A file that did not exist, by its descriptor, and its directory by `folder`, which is closed with it."""

    def __init__(self, folder: int, path: str) -> None:
        self._folder = folder
        self._path = path
        self._fd = durable.open_new(folder, os.path.basename(path))

    def _close(self) -> None:
        """Close the file, and then its directory."""
        self._close_file()
        self._close_folder()

    def _discard(self) -> None:
        """Close the file and delete it, as far as that works."""
        with contextlib.suppress(OSError):
            self._close_file()
        with contextlib.suppress(OSError):
            if self._folder >= 0:
                os.unlink(os.path.basename(self._path), dir_fd=self._folder)
        with contextlib.suppress(OSError):
            self._close_folder()

    def _close_file(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _close_folder(self) -> None:
        if self._folder >= 0:
            folder, self._folder = self._folder, -1
            os.close(folder)


class FileWriter(NewFile):
    """Writes a file that it has created, past the page cache where that works, with one descriptor.

    What is not a multiple of ALIGN is kept until `finish`, which writes it through the cache. `folder` is a descriptor
    of its directory, which is closed with it.
    """

    def __init__(self, folder: int, path: str, size: int, *, past_cache: bool) -> None:
        super().__init__(folder, path)
        self._size = size
        self._rest: List[Tuple[int, bytes]] = []
        self._written = 0
        self._lock = threading.Lock()
        self._direct = past_cache and size >= ALIGN and self._switch_direct_and_is_on(True)
        if self._direct:
            self.align = ALIGN
        else:
            self.align = 1
        if self._direct:
            self._reserve_blocks_or_abort()

    def _reserve_blocks_or_abort(self) -> None:
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

    def _switch_direct_and_is_on(self, enable: bool) -> bool:
        """Switch O_DIRECT of the file on or off, and return whether it is on now."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if enable else flags & ~os.O_DIRECT)
        except OSError:
            return not enable
        return enable

    def write(self, view: memoryview, offset: int) -> None:
        """See StoreWriter; from several threads, in any order."""
        with root_files.describing_errors("written", self._path):
            self._write(view, offset)

    def _write(self, view: memoryview, offset: int) -> None:
        if self._direct and offset % ALIGN == 0:
            direct_size = len(view) - len(view) % ALIGN
        else:
            direct_size = len(view)
        if direct_size < len(view):
            self._rest.append((offset + direct_size, bytes(view[direct_size:])))
        done = 0
        while done < direct_size:
            is_direct = self._direct
            try:
                done += self._count_written_and_return_it(os.pwrite(self._fd, view[done:direct_size], offset + done))
            except OSError as err:
                # EINVAL: the view's address does not suit, or a short write ended in the middle of a block. Other
                # threads may be writing: their bytes are right either way.
                if err.errno != errno.EINVAL or not is_direct:
                    raise
                self._direct = self._switch_direct_and_is_on(False)

    def _count_written_and_return_it(self, written: int) -> int:
        with self._lock:
            self._written += written
        return written

    def finish(self) -> None:
        """See StoreWriter. A file of another size than it was opened with is an error."""
        with root_files.describing_errors("written", self._path):
            self._finish()

    def _finish(self) -> None:
        if self._direct:
            self._direct = self._switch_direct_and_is_on(False)
        for at, data in self._rest:
            done = 0
            while done < len(data):
                done += self._count_written_and_return_it(os.pwrite(self._fd, data[done:], at + done))
        # The size alone says nothing: it was reserved.
        if not self._written == self._size == os.fstat(self._fd).st_size:
            raise OSError(errno.EIO, f"{self._written} bytes were written, expected {self._size}", self._path)
        os.fsync(self._fd)
        self._close()

    def abort(self) -> None:
        """See StoreWriter."""
        self._discard()


class PosixStore:
    """See Store. Only an object at its top level makes the root: one that is missing later is a mount that is gone.

    `owner`: only files of this user are read. `top`: a descriptor of the root that its caller keeps open; everything is
    made and removed there, whatever another lets the root's path lead to meanwhile.
    """

    def __init__(self, root: str, *, owner: Optional[int] = None, top: int = -1) -> None:
        self.url = os.path.abspath(root)
        self._owner = owner
        self._top = top
        self._lock = threading.Lock()
        self._synced: Optional[str] = None
        self._direct: Optional[bool] = None

    @property
    def capabilities(self) -> Capabilities:
        """`direct` is known once something was written."""
        return Capabilities(delete=True, overwrite=True, direct=bool(self._direct), local=True, parallel_write=True)

    def _path(self, name: str) -> str:
        return os.path.join(self.url, require_name_below_root(name))

    def _open_or_create_folder(self, name: str) -> int:
        """Return a descriptor of the directory in which `name` is to be made; make it, or the root, where it is
        missing. It is no link."""
        folder = require_name_below_root(name).rpartition("/")[0]
        with contextlib.suppress(FileNotFoundError):
            return root_files.open_parent_folder(self.url, name, root_fd=self._top)
        if not folder and self._top < 0:
            root_files.make_root(self.url)
            return root_files.open_parent_folder(self.url, name, root_fd=self._top)
        with root_files.opened_parent_folder(self.url, folder, root_fd=self._top) as top, contextlib.suppress(
            FileExistsError
        ):
            os.mkdir(folder, dir_fd=top)
        return root_files.open_parent_folder(self.url, name, root_fd=self._top)

    def _sync_folder_name_once(self, folder: str) -> None:
        """Sync the name of `folder`, once: whoever made it may have died before its name was on disk."""
        with self._lock:
            if folder and self._synced != folder:
                with root_files.opened_parent_folder(self.url, folder, root_fd=self._top) as top:
                    durable.sync_folder(top)
                self._synced = folder

    def list(self, prefix: str = "", *, after: str = "", until: str = "") -> List[str]:
        """See Store. Takes types from the directory itself: nothing is looked up but where links lead."""
        if prefix:
            path = self._path(prefix)
        else:
            path = self.url
        try:
            with os.scandir(path) as entries:
                return sort_names_between(
                    (entry.name + "/" if _is_directory_or_link_to_one(entry) else entry.name for entry in entries),
                    after,
                    until,
                )
        except OSError as err:
            _raise_unless_missing(path if prefix else "", err)
            return []

    def sizes(self, prefix: str) -> Dict[str, int]:
        """See Store."""
        path = self._path(prefix)
        sizes_by_name: Dict[str, int] = {}
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            sizes_by_name[entry.name] = status.st_size
        except OSError as err:
            _raise_unless_missing(path, err)
        return sizes_by_name

    def exists(self, name: str) -> bool:
        """See Store."""
        try:
            os.lstat(self._path(name))
            return True
        except OSError as err:
            if err.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise

    def read(self, name: str, most: int = SMALL) -> bytes:
        """See Store."""
        return root_files.read(self._path(name), most, owner=self._owner)

    def open_read(self, name: str) -> StoreReader:
        """See Store."""
        return FileReader(self._path(name), owner=self._owner)

    def drop_cached_pages(self, name: str) -> None:
        """See Store. Takes the file's pages out of the page cache; those that are not written yet are written first."""
        with contextlib.suppress(OSError, Untrusted):
            fd, _ = root_files.open_to_read(self._path(name), owner=self._owner)
            try:
                with contextlib.suppress(OSError):  # a file system, or a mode, in which a reader cannot ask for that
                    os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def link_target(self, name: str) -> Optional[str]:
        """See Store."""
        try:
            return os.readlink(self._path(name))
        except OSError:
            return None

    def create(self, name: str, data: bytes) -> None:
        """See Store."""
        path = self._path(name)
        with root_files.describing_errors("written", path):
            folder = self._open_or_create_folder(name)
            try:
                self._sync_folder_name_once(name.rpartition("/")[0])
                durable.create(folder, os.path.basename(path), data)
            finally:
                os.close(folder)

    def open_write(self, name: str, size: int) -> StoreWriter:
        """See Store. The first call finds out whether O_DIRECT works."""
        path = self._path(name)
        with root_files.describing_errors("written", path):
            folder = self._open_or_create_folder(name)
            try:
                if self._direct is None:
                    self._direct = can_write_direct(folder)
                return FileWriter(folder, path, size, past_cache=self._direct)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.close(folder)
                raise

    def sync(self, folder: str) -> None:
        """See Store."""
        with root_files.describing_errors("written", self._path(folder)):
            self._sync_folder_name_once(folder)
            with root_files.opened_parent_folder(self.url, f"{folder}/.", root_fd=self._top) as directory:
                durable.sync_folder(directory)

    def overwrite_non_atomically(self, name: str, data: bytes) -> None:
        """See Store. In place: a reader may see it torn, and a hint that is torn is none."""
        path = self._path(name)
        with root_files.describing_errors("written", path), root_files.opened_parent_folder(
            self.url, name, root_fd=self._top
        ) as folder:
            fd = root_files.open_truncated(folder, path)
            try:
                durable.write_all(fd, data)
            finally:
                os.close(fd)

    def delete(self, name: str) -> None:
        """See Store. A directory that is not empty is left as it is."""
        with self._tolerating_missing_or_not_empty(name), root_files.opened_parent_folder(
            self.url, name, root_fd=self._top
        ) as folder:
            self._remove(folder, name)

    def delete_all(self, names: Sequence[str]) -> None:
        """See Store. A directory is opened once; one name after the other, since the kernel lets one thread at a time
        change a directory."""
        for _, group in groupby(names, lambda name: name.rpartition("/")[0]):
            inside = list(group)
            with self._tolerating_missing_or_not_empty(inside[0]), root_files.opened_parent_folder(
                self.url, inside[0], root_fd=self._top
            ) as folder:
                for name in inside:
                    with self._tolerating_missing_or_not_empty(name):
                        self._remove(folder, name)
                    failpoint("store.file_deleted")

    def _remove(self, folder: int, name: str) -> None:
        last = os.path.basename(self._path(name).rstrip("/"))
        if not name.endswith("/"):
            os.unlink(last, dir_fd=folder)
        elif self.link_target(name[:-1]) is not None:
            raise root_files.not_an_object_error(self._path(name).rstrip("/"), "a directory of this root")
        else:
            os.rmdir(last, dir_fd=folder)

    @contextlib.contextmanager
    def _tolerating_missing_or_not_empty(self, name: str) -> Iterator[None]:
        """A context in which it is no error to delete what is missing, or a directory that is not empty. Raise
        Unsupported, OSError."""
        path = self._path(name)
        try:
            with root_files.describing_errors("deleted", path):
                yield
        except FileNotFoundError:
            pass
        except OSError as err:
            if err.errno in NOT_ALLOWED:
                raise Unsupported(f"{path} cannot be removed: {err.strerror}") from None
            if not (name.endswith("/") and err.errno in (errno.ENOTEMPTY, errno.EEXIST)):
                raise


def _raise_unless_missing(path: str, err: OSError) -> None:
    """Raise `err` of a directory that could not be listed, unless nothing is there. `path` "": it is the root
    itself."""
    # A link that leads nowhere is not the same as nothing: what it led to may be back tomorrow.
    if path and err.errno in (errno.ENOENT, *files.MAYBE_NO_FILE) and files.describe_if_not_regular_file(path):
        raise root_files.not_an_object_error(path, "a directory") from None
    if err.errno != errno.ENOENT:
        raise err


def _is_directory_or_link_to_one(entry: os.DirEntry[str]) -> bool:
    """Return whether the entry is a directory, or a link to one; a link that leads nowhere or in a circle is
    not. Raise OSError."""
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


# Direct I/O: past the page cache, where the file system can. Tried, not assumed.
#
# A kernel may take O_DIRECT at open and refuse it at the first transfer (EINVAL), so what counts is a transfer.

_CANNOT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EISDIR)
PROBE_PREFIX = ".hpk-probe-"


def can_write_direct(folder: int) -> bool:
    """Return whether a file in the directory `folder` can be written with O_DIRECT, by writing a probe file that
    has no name or loses it at once.

    Raise OSError when `folder` cannot be written at all.
    """
    page = mmap.mmap(-1, ALIGN)
    fd, name = _create_direct_probe_file(folder)
    if fd < 0:
        return False
    try:
        return os.pwrite(fd, page, 0) == ALIGN and os.preadv(fd, [page], 0) == ALIGN
    except OSError as err:
        if err.errno in _CANNOT:
            return False
        raise
    finally:
        os.close(fd)
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
        page.close()


def _create_direct_probe_file(folder: int) -> tuple[int, str]:
    """Create a file with O_DIRECT and return (descriptor or -1, its name in `folder` or "" when it has none)."""
    flags = os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=folder), ""
    name = PROBE_PREFIX + secrets.token_hex(6)
    try:
        return os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder), name
    except OSError as err:
        # The open may have made the file and then refused the flag.
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        if err.errno in _CANNOT:
            return -1, ""
        raise


def open_direct_for_reading(path: str, status: os.stat_result) -> int:
    """Return a descriptor that reads past the page cache, or -1 where that does not work. Raise nothing.

    `status` is the file that was opened there: another one is not read in its place.
    """
    if status.st_size < ALIGN:
        return -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
    page = mmap.mmap(-1, ALIGN)
    try:
        if os.path.samestat(os.fstat(fd), status) and os.preadv(fd, [page], 0) == ALIGN:
            return fd
    except OSError:
        pass
    finally:
        page.close()
    os.close(fd)
    return -1
