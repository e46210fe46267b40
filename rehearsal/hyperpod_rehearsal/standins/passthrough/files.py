"""Open files and directories of the pass-through file system."""

from __future__ import annotations

import errno
import os
import threading
from typing import Dict, List, Tuple

from hyperpod_rehearsal.standins.fuse import wire
from hyperpod_rehearsal.standins.fuse.session import Handler
from hyperpod_rehearsal.standins.fuse.wire import FuseRequest
from hyperpod_rehearsal.standins.passthrough.nodes import Nodes

NOT_PASSED_ON = os.O_CREAT | os.O_EXCL | os.O_NOCTTY | os.O_DIRECT | os.O_NOFOLLOW | os.O_NOATIME
"""Flags of open(2) that the kernel has dealt with. O_DIRECT is honoured towards the kernel's cache only: the buffers
here are not aligned."""


class OpenFiles:
    """File handles. Their operations need no identity: open(2) has settled what the caller may do."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lock = threading.Lock()
        self._listings: Dict[int, List[Tuple[bytes, int, int]]] = {}

    def handlers(self) -> Dict[int, Handler]:
        """What to call for each opcode on an open file."""
        return {
            wire.READ: self.read,
            wire.WRITE: self.write,
            wire.RELEASE: self.release,
            wire.FSYNC: self.fsync,
            wire.FSYNCDIR: self.fsync,
            wire.READDIR: self.readdir,
            wire.RELEASEDIR: self.release,
        }

    def descriptor_of_handle(self, handle: int) -> int:
        """Handles are descriptors."""
        return handle

    def open(self, request: FuseRequest) -> bytes:
        """Open what the node is, with its permissions checked by the file system underneath."""
        flags = wire.U32.unpack_from(request.body)[0]
        return wire.open_reply(os.open(self._nodes.proc_path(request.node), flags & ~NOT_PASSED_ON | os.O_CLOEXEC))

    def create_and_open(self, parent: int, name: bytes, flags: int, mode: int) -> int:
        """Open `name` in the directory `parent` (a descriptor) and make it if need be; returns the handle."""
        kept = flags & ~NOT_PASSED_ON | flags & os.O_EXCL
        return os.open(name, kept | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode & 0o7777, dir_fd=parent)

    def opendir(self, request: FuseRequest) -> bytes:
        """Open a directory for reading."""
        return wire.open_reply(
            os.open(self._nodes.proc_path(request.node), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        )

    def read(self, request: FuseRequest) -> wire.Payload:
        """As many bytes as there are, up to the size asked for."""
        handle, offset, size = wire.IN_READ.unpack_from(request.body)
        room = request.scratch[:size]
        return room[: os.preadv(handle, [room], offset)]

    def write(self, request: FuseRequest) -> bytes:
        """All bytes, or the error that stopped them."""
        handle, offset, size = wire.IN_READ.unpack_from(request.body)
        data = request.body[wire.IN_WRITE_SIZE : wire.IN_WRITE_SIZE + size]
        done = 0
        while done < size:
            count = os.pwrite(handle, data[done:], offset + done)
            if count == 0:
                raise OSError(errno.EIO, "nothing was written")
            done += count
        return wire.WRITE_OUT.pack(done, 0)

    def fsync(self, request: FuseRequest) -> bytes:
        """fsync(2) and fdatasync(2), of files and directories."""
        os.fsync(request.file_handle())
        return b""

    def readdir(self, request: FuseRequest) -> bytes:
        """Entries; reading from the start again lists anew."""
        handle, offset, size = wire.IN_READ.unpack_from(request.body)
        with self._lock:
            entries = self._listings.get(handle)
        if offset == 0 or entries is None:
            entries = self._list_entries(handle)
            with self._lock:
                self._listings[handle] = entries
        return wire.pack_directory(entries, offset, size)

    def _list_entries(self, descriptor: int) -> List[Tuple[bytes, int, int]]:
        entries = [(b".", 4, 1), (b"..", 4, 1)]
        with os.scandir(descriptor) as scanned:
            for entry in scanned:
                entries.append((os.fsencode(entry.name), _entry_type(entry), entry.inode()))
        return entries

    def release(self, request: FuseRequest) -> bytes:
        """The last reference to an open file is gone."""
        self.close_handle(request.file_handle())
        return b""

    def close_handle(self, handle: int) -> None:
        """Forget a handle."""
        with self._lock:
            self._listings.pop(handle, None)
        os.close(handle)


def _entry_type(entry: os.DirEntry[str]) -> int:
    """The type of a directory's entry as readdir(3) has it: directory, symbolic link or regular file."""
    if entry.is_dir(follow_symlinks=False):
        return 4
    if entry.is_symlink():
        return 10
    return 8
