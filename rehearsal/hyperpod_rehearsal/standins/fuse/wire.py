"""Structures of the FUSE kernel protocol, version 7.31, little endian (include/uapi/linux/fuse.h)."""

from __future__ import annotations

import os
import struct
from typing import List, NamedTuple, Tuple, Union

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK = 1, 2, 3, 4, 5, 6
MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK = 8, 9, 10, 11, 12, 13
OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 14, 15, 16, 17, 18, 20
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR = 25, 26, 27, 28, 29, 30
ACCESS, CREATE, INTERRUPT, DESTROY, BATCH_FORGET, RENAME2 = 34, 35, 36, 38, 42, 45

ROOT = 1
"""Node id of the root."""

MAX_WRITE = 1 << 20
"""Most bytes of one read or write request."""

IN_HEADER = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
OUT_HEADER = struct.Struct("<IiQ")  # length, -errno, unique
IN_INIT = struct.Struct("<IIII")  # major, minor, max_readahead, flags
OUT_INIT = struct.Struct("<IIIIHHIIHHI7I")
IN_SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
IN_MKNOD = struct.Struct("<IIII")  # mode, rdev, umask, padding
IN_MKDIR = struct.Struct("<II")  # mode, umask
IN_CREATE = struct.Struct("<IIII")  # flags, mode, umask, open_flags
IN_RENAME2 = struct.Struct("<QII")  # new parent, flags, padding
IN_READ = struct.Struct("<QQI")  # handle, offset, size
IN_WRITE_SIZE = 40  # bytes before a write's data
ENTRY = struct.Struct("<4Q2I")
ATTR = struct.Struct("<6Q10I")
ATTR_OUT = struct.Struct("<Q2I")
OPEN_OUT = struct.Struct("<QII")
WRITE_OUT = struct.Struct("<II")
STATFS_OUT = struct.Struct("<5Q4I6I")
DIRENT = struct.Struct("<QQII")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
FORGET_ONE = struct.Struct("<QQ")

SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_HANDLE, SET_ATIME_NOW, SET_MTIME_NOW = (
    1 << 0,
    1 << 1,
    1 << 2,
    1 << 3,
    1 << 4,
    1 << 5,
    1 << 6,
    1 << 7,
    1 << 8,
)

INIT_ASYNC_READ, INIT_ATOMIC_O_TRUNC, INIT_BIG_WRITES = 1 << 0, 1 << 3, 1 << 5
INIT_PARALLEL_DIROPS, INIT_MAX_PAGES = 1 << 18, 1 << 22
INIT_FLAGS = INIT_ASYNC_READ | INIT_ATOMIC_O_TRUNC | INIT_BIG_WRITES | INIT_PARALLEL_DIROPS | INIT_MAX_PAGES
"""What is asked of the kernel. Not asked: writeback cache (a writer's bytes must be out at close) and remote locks
(flock and fcntl locks stay within the node)."""

Payload = Union[bytes, bytearray, memoryview]
_U64_MASK = (1 << 64) - 1


class FuseRequest(NamedTuple):
    """One request. body: what follows the header; scratch: room for a reply of MAX_WRITE bytes. Both belong to
    the thread and are used again for its next request."""

    opcode: int
    node: int
    uid: int
    gid: int
    pid: int
    body: memoryview
    scratch: memoryview

    def trailing_names(self, skip: int = 0) -> List[bytes]:
        """The names that end the body, behind `skip` bytes of structure."""
        return bytes(self.body[skip:]).split(b"\0")[:-1]

    def file_handle(self) -> int:
        """The file handle that begins the body of most requests on open files."""
        return int(U64.unpack_from(self.body)[0])


def init_reply(body: memoryview) -> bytes:
    """Reply to INIT: version, limits and the features that both sides have."""
    _, _, readahead, flags = IN_INIT.unpack_from(body)
    return OUT_INIT.pack(
        7,
        31,
        min(max(readahead, 1), MAX_WRITE),
        INIT_FLAGS & flags,
        64,
        48,
        MAX_WRITE,
        1,
        MAX_WRITE // 4096,
        0,
        0,
        *[0] * 7,
    )


def pack_attr(status: os.stat_result) -> bytes:
    """Attributes of a real file."""
    return ATTR.pack(
        status.st_ino,
        status.st_size,
        status.st_blocks,
        *_time_seconds(status),
        status.st_atime_ns % 10**9,
        status.st_mtime_ns % 10**9,
        status.st_ctime_ns % 10**9,
        status.st_mode,
        status.st_nlink,
        status.st_uid,
        status.st_gid,
        status.st_rdev,
        status.st_blksize,
        0,
    )


def _time_seconds(status: os.stat_result) -> Tuple[int, int, int]:
    return (
        status.st_atime_ns // 10**9 & _U64_MASK,
        status.st_mtime_ns // 10**9 & _U64_MASK,
        status.st_ctime_ns // 10**9 & _U64_MASK,
    )


def entry_reply(node: int, attr: bytes, entry_ttl: float, attr_ttl: float) -> bytes:
    """Reply to LOOKUP and to all that makes a node. TTLs: seconds that the kernel may believe it."""
    return (
        ENTRY.pack(
            node, 0, int(entry_ttl), int(attr_ttl), _nanosecond_fraction(entry_ttl), _nanosecond_fraction(attr_ttl)
        )
        + attr
    )


def attr_reply(attr: bytes, ttl: float) -> bytes:
    """Reply to GETATTR and SETATTR."""
    return ATTR_OUT.pack(int(ttl), _nanosecond_fraction(ttl), 0) + attr


def _nanosecond_fraction(seconds: float) -> int:
    return int(seconds % 1 * 10**9)


def open_reply(handle: int, flags: int = 0) -> bytes:
    """Reply to OPEN and OPENDIR. Without flags the kernel drops what it cached of the file: open sees what is there."""
    return OPEN_OUT.pack(handle, flags, 0)


def pack_directory(entries: List[Tuple[bytes, int, int]], offset: int, size: int) -> bytes:
    """Entries (name, d_type, inode) from position `offset` on, as many as fit into `size` bytes."""
    out = bytearray()
    for position in range(offset, len(entries)):
        name, kind, inode = entries[position]
        record = DIRENT.pack(inode, position + 1, len(name), kind) + name
        record += b"\0" * (-len(record) % 8)
        if len(out) + len(record) > size:
            break
        out += record
    return bytes(out)
