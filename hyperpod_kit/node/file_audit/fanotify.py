"""fanotify(7) by ctypes: two groups on a file system, because no one group says who *and* what.

The first is asked before each open and each exec: the process stands still until it is answered, so who it is can be
read in /proc however short it lives. The second tells of creating, removing and renaming, with names; by then the
process may be gone.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Iterator, List, NamedTuple, Tuple

CLOSE_WRITE, CLOSE_READ, CREATE, DELETE, RENAME = 0x8, 0x10, 0x100, 0x200, 0x10000000
OVERFLOW, OPEN_PERM, EXEC_PERM, ON_DIRECTORY = 0x4000, 0x10000, 0x40000, 0x40000000

_CLOEXEC, _NONBLOCK, _CONTENT, _UNLIMITED, _DFID_NAME = 0x1, 0x2, 0x4, 0x10, 0xC00
_ADD, _MOUNT, _FILESYSTEM = 0x1, 0x10, 0x100
_ALLOW = 1
_OLD_NAME, _NEW_NAME, _NAME = 10, 12, 2
_EVENT = struct.Struct("=IBBHQii")
_BUFFER = 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


class FileEvent(NamedTuple):
    """`mask`: bits as above; path, new_path: "" where the kernel gave none; descriptor: of the file, -1 for none."""

    mask: int
    pid: int
    path: str
    new_path: str
    descriptor: int


class FileHandle(ctypes.Structure):
    """`struct file_handle` with room for the largest one."""

    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


def _check_call(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


class PermissionGroup:
    """Asked before each open on the file system of `path`, and before each exec anywhere. Raises OSError."""

    def __init__(self, path: str) -> None:
        self.descriptor = _init_fanotify_group(_CLOEXEC | _NONBLOCK | _CONTENT | _UNLIMITED)
        # A FUSE file system has no mark of its own, its mount has.
        _add_filesystem_or_mount_mark(self.descriptor, OPEN_PERM | CLOSE_WRITE | CLOSE_READ, path)
        _add_mark(self.descriptor, _FILESYSTEM, EXEC_PERM, "/")

    def events(self) -> Iterator[FileEvent]:
        """Read the events that wait. Each one of `OPEN_PERM` or `EXEC_PERM` must go to `allow`."""
        for mask, descriptor, pid, _ in _read_raw_events(self.descriptor):
            path = ""
            if descriptor >= 0:
                try:
                    path = os.readlink(f"/proc/self/fd/{descriptor}")
                except OSError:
                    path = ""
            yield FileEvent(mask, pid, path, "", descriptor)

    def allow_and_close(self, event: FileEvent) -> None:
        """Let the process that waits for this event go on, and close the event's descriptor."""
        if event.mask & (OPEN_PERM | EXEC_PERM) and event.descriptor >= 0:
            os.write(self.descriptor, struct.pack("=iI", event.descriptor, _ALLOW))
        if event.descriptor >= 0:
            os.close(event.descriptor)


class NameEventGroup:
    """Told of creating, removing and renaming on the file system of `path`. Raises OSError: of FUSE the kernel tells
    nothing of that kind (ENODEV)."""

    def __init__(self, path: str) -> None:
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.descriptor = _init_fanotify_group(_CLOEXEC | _NONBLOCK | _UNLIMITED | _DFID_NAME)
        _add_mark(self.descriptor, _FILESYSTEM, CREATE | DELETE | RENAME | ON_DIRECTORY, path)

    def events(self) -> Iterator[FileEvent]:
        """Read the events that wait."""
        for mask, _, pid, infos in _read_raw_events(self.descriptor):
            names = {kind: self._path(handle, name) for kind, handle, name in infos}
            path = names.get(_OLD_NAME) or names.get(_NAME) or ""
            yield FileEvent(mask, pid, path, names.get(_NEW_NAME, ""), -1)

    def _path(self, handle: bytes, name: str) -> str:
        """Return the path of `name` in the directory of that handle, as it is called now; `?/name` where the
        directory is gone."""
        size, kind = struct.unpack_from("=Ii", handle)
        file_handle = FileHandle(size, kind)
        ctypes.memmove(file_handle.data, handle[8 : 8 + size], min(size, 128))
        directory = _libc.open_by_handle_at(self._root, ctypes.byref(file_handle), os.O_PATH | os.O_CLOEXEC)
        if directory < 0:
            return f"?/{name}"
        try:
            return os.path.join(os.readlink(f"/proc/self/fd/{directory}"), name)
        finally:
            os.close(directory)


Info = Tuple[int, bytes, str]


def _read_raw_events(descriptor: int) -> Iterator[Tuple[int, int, int, List[Info]]]:
    try:
        data = os.read(descriptor, _BUFFER)
    except BlockingIOError:
        return
    at = 0
    while at + _EVENT.size <= len(data):
        length, _, _, begin, mask, file, pid = _EVENT.unpack_from(data, at)
        infos: List[Info] = []
        inner = at + begin
        while inner + 4 <= at + length:
            kind, _, size = struct.unpack_from("=BBH", data, inner)
            if size < 4:
                break
            if kind in (_OLD_NAME, _NEW_NAME, _NAME):
                # Header, id of the file system, handle, name.
                handle = data[inner + 12 : inner + size]
                (count,) = struct.unpack_from("=I", handle)
                name = handle[8 + count :].split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
                infos.append((kind, handle, name))
            inner += size
        yield mask, file, pid, infos
        at += length


def _init_fanotify_group(flags: int) -> int:
    return _check_call(
        _libc.fanotify_init(flags, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_LARGEFILE", 0)), "fanotify"
    )


def _add_mark(descriptor: int, kind: int, mask: int, path: str) -> None:
    call = _libc.fanotify_mark(descriptor, _ADD | kind, ctypes.c_ulonglong(mask), -100, os.fsencode(path))
    _check_call(call, f"fanotify on {path}")


def _add_filesystem_or_mount_mark(descriptor: int, mask: int, path: str) -> None:
    try:
        _add_mark(descriptor, _FILESYSTEM, mask, path)
    except OSError as err:
        if err.errno not in (errno.ENODEV, errno.EOPNOTSUPP, errno.EXDEV):
            raise
        _add_mark(descriptor, _MOUNT, mask, path)
