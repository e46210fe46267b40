"""The operations on names and attributes; those on open files are in `files.py`."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import time
from typing import Dict, Optional

from hyperpod_rehearsal.standins.fuse import wire
from hyperpod_rehearsal.standins.fuse.session import Handler
from hyperpod_rehearsal.standins.fuse.wire import FuseRequest
from hyperpod_rehearsal.standins.passthrough.files import OpenFiles
from hyperpod_rehearsal.standins.passthrough.identity import Identities, PosixIdentity, may_access
from hyperpod_rehearsal.standins.passthrough.nodes import Nodes

DIRECTORY_TTL = 1.0
"""Seconds that the kernel may believe what it knows of a directory. Of files it believes nothing: another node may
have replaced or extended them, and a checkpoint that was just committed must be seen by the next open."""

_libc = ctypes.CDLL(None, use_errno=True)


def _attribute_ttl(mode: int) -> float:
    if stat.S_ISDIR(mode):
        return DIRECTORY_TTL
    return 0.0


class PassThrough:
    """Every operation on `root`, as `squash` or as each caller; with `root_squash` as nobody for uid 0."""

    def __init__(self, root: str, squash: Optional[PosixIdentity], *, root_squash: bool = False) -> None:
        self._nodes = Nodes(root)
        self._identities = Identities(squash, root_squash=root_squash)
        self._files = OpenFiles(self._nodes)
        self.forget = self._nodes.forget

    def handlers(self) -> Dict[int, Handler]:
        """What to call for each opcode; operations on names first assume the caller's identity."""
        as_caller: Dict[int, Handler] = {
            wire.LOOKUP: self.lookup,
            wire.GETATTR: self.getattr,
            wire.SETATTR: self.setattr,
            wire.READLINK: self.readlink,
            wire.SYMLINK: self.symlink,
            wire.MKNOD: self.mknod,
            wire.MKDIR: self.mkdir,
            wire.UNLINK: self.unlink,
            wire.RMDIR: self.rmdir,
            wire.RENAME: self.rename,
            wire.RENAME2: self.rename,
            wire.LINK: self.link,
            wire.STATFS: self.statfs,
            wire.ACCESS: self.access,
            wire.CREATE: self.create,
            wire.OPEN: self._files.open,
            wire.OPENDIR: self._files.opendir,
        }
        return {
            **{opcode: self._with_caller_identity(handler) for opcode, handler in as_caller.items()},
            **self._files.handlers(),
        }

    def _with_caller_identity(self, handler: Handler) -> Handler:
        def call(request: FuseRequest) -> wire.Payload:
            self._identities.assume_caller_identity(request)
            return handler(request)

        return call

    def _look_up_and_pack_entry(self, parent: int, name: bytes) -> bytes:
        node, status = self._nodes.look_up_and_count(parent, name)
        ttl = _attribute_ttl(status.st_mode)
        return wire.entry_reply(node, wire.pack_attr(status), ttl, ttl)

    def _pack_node_attr_reply(self, node: int) -> bytes:
        status = os.fstat(self._nodes.descriptor(node))
        if node == wire.ROOT and status.st_nlink == 0:
            # What was mounted is gone on the server: NFS has no file behind its handle then, whatever is open here.
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return wire.attr_reply(wire.pack_attr(status), _attribute_ttl(status.st_mode))

    def lookup(self, request: FuseRequest) -> bytes:
        """Look up a name.

        A missing one is ENOENT each time and never cached: a file made elsewhere appears at once.
        """
        return self._look_up_and_pack_entry(request.node, request.trailing_names()[0])

    def getattr(self, request: FuseRequest) -> bytes:
        """Status of a node, also of one that has no name any more."""
        return self._pack_node_attr_reply(request.node)

    def setattr(self, request: FuseRequest) -> bytes:
        """chmod, chown, truncate, utimens, in the order that keeps each possible."""
        (valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _) = (
            wire.IN_SETATTR.unpack_from(request.body)
        )
        path = self._nodes.proc_path(request.node)
        if valid & wire.SET_MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & (wire.SET_UID | wire.SET_GID):
            _set_owner(path, valid, uid, gid)
        if valid & wire.SET_SIZE:
            if valid & wire.SET_HANDLE:
                os.ftruncate(self._files.descriptor_of_handle(handle), size)
            else:
                os.truncate(path, size)
        if valid & wire.SET_ATIME_NOW and valid & wire.SET_MTIME_NOW:
            os.utime(path)  # a writer may do this, an explicit time only the owner
        elif valid & (wire.SET_ATIME | wire.SET_MTIME):
            old, now = os.fstat(self._nodes.descriptor(request.node)), time.time_ns()
            accessed, modified = old.st_atime_ns, old.st_mtime_ns
            if valid & (wire.SET_ATIME_NOW | wire.SET_ATIME):
                accessed = _time_to_set_ns(now, bool(valid & wire.SET_ATIME_NOW), atime, atime_ns)
            if valid & (wire.SET_MTIME_NOW | wire.SET_MTIME):
                modified = _time_to_set_ns(now, bool(valid & wire.SET_MTIME_NOW), mtime, mtime_ns)
            os.utime(path, ns=(accessed, modified))
        return self._pack_node_attr_reply(request.node)

    def readlink(self, request: FuseRequest) -> bytes:
        """Target of a symbolic link."""
        return os.readlink(b"", dir_fd=self._nodes.descriptor(request.node))

    def symlink(self, request: FuseRequest) -> bytes:
        """A symbolic link."""
        name, target = request.trailing_names()
        os.symlink(target, name, dir_fd=self._nodes.descriptor(request.node))
        return self._look_up_and_pack_entry(request.node, name)

    def mknod(self, request: FuseRequest) -> bytes:
        """A file, a pipe or a socket."""
        mode, device, _, _ = wire.IN_MKNOD.unpack_from(request.body)
        name = request.trailing_names(wire.IN_MKNOD.size)[0]
        os.mknod(name, mode, device, dir_fd=self._nodes.descriptor(request.node))
        return self._look_up_and_pack_entry(request.node, name)

    def mkdir(self, request: FuseRequest) -> bytes:
        """A directory."""
        mode, _ = wire.IN_MKDIR.unpack_from(request.body)
        name = request.trailing_names(wire.IN_MKDIR.size)[0]
        os.mkdir(name, mode, dir_fd=self._nodes.descriptor(request.node))
        return self._look_up_and_pack_entry(request.node, name)

    def unlink(self, request: FuseRequest) -> bytes:
        """Remove a name; open files stay readable."""
        os.unlink(request.trailing_names()[0], dir_fd=self._nodes.descriptor(request.node))
        return b""

    def rmdir(self, request: FuseRequest) -> bytes:
        """Remove an empty directory."""
        os.rmdir(request.trailing_names()[0], dir_fd=self._nodes.descriptor(request.node))
        return b""

    def rename(self, request: FuseRequest) -> bytes:
        """rename(2) and renameat2(2) with its flags."""
        flags, size = 0, wire.U64.size
        if request.opcode == wire.RENAME2:
            _, flags, _ = wire.IN_RENAME2.unpack_from(request.body)
            size = wire.IN_RENAME2.size
        source = self._nodes.descriptor(request.node)
        target = self._nodes.descriptor(request.file_handle())
        old, new = request.trailing_names(size)
        if not flags:
            os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)
        elif _libc.renameat2(source, old, target, new, flags):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return b""

    def link(self, request: FuseRequest) -> bytes:
        """Create a second name for a file; EEXIST when it is taken, atomically."""
        name = request.trailing_names(wire.U64.size)[0]
        os.link(
            self._nodes.proc_path(request.file_handle()),
            name,
            dst_dir_fd=self._nodes.descriptor(request.node),
            follow_symlinks=True,
        )
        return self._look_up_and_pack_entry(request.node, name)

    def create(self, request: FuseRequest) -> bytes:
        """Create and open in one step, so that O_EXCL holds between nodes."""
        flags, mode, _, _ = wire.IN_CREATE.unpack_from(request.body)
        name = request.trailing_names(wire.IN_CREATE.size)[0]
        handle = self._files.create_and_open(self._nodes.descriptor(request.node), name, flags, mode)
        try:
            return self._look_up_and_pack_entry(request.node, name) + wire.open_reply(handle)
        except OSError:
            self._files.close_handle(handle)
            raise

    def statfs(self, request: FuseRequest) -> bytes:
        """Figures of the file system underneath."""
        status = os.fstatvfs(self._nodes.descriptor(request.node))
        return wire.STATFS_OUT.pack(
            status.f_blocks,
            status.f_bfree,
            status.f_bavail,
            status.f_files,
            status.f_ffree,
            status.f_bsize,
            status.f_namemax,
            status.f_frsize,
            0,
            *[0] * 6,
        )

    def access(self, request: FuseRequest) -> bytes:
        """Check access(2) with the identity in force."""
        mask = wire.U32.unpack_from(request.body)[0]
        status = os.fstat(self._nodes.descriptor(request.node))
        if not may_access(self._identities.assume_caller_identity(request), status, mask):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return b""


def _set_owner(path: str, set_mask: int, uid: int, gid: int) -> None:
    """Change the user, the group or both, whichever `set_mask` names."""
    owner, group = -1, -1
    if set_mask & wire.SET_UID:
        owner = uid
    if set_mask & wire.SET_GID:
        group = gid
    os.chown(path, owner, group)


def _time_to_set_ns(now: int, is_now: bool, seconds: int, fraction: int) -> int:
    """The time to set, in nanoseconds: `now`, or the one that the request gives."""
    if is_now:
        return now
    return _to_nanoseconds(seconds, fraction)


def _to_nanoseconds(seconds: int, fraction: int) -> int:
    """Nanoseconds since 1970 of a time whose seconds are sent as an unsigned number."""
    if seconds >> 63:
        seconds -= 1 << 64
    return seconds * 10**9 + fraction
