"""Mountpoint's rules for open files: one writer from the start to the end, or readers."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from concurrent.futures import Executor
from typing import Dict, List, Optional, Tuple

from hyperpod_rehearsal.standins.fuse import wire
from hyperpod_rehearsal.standins.fuse.session import Handler, Refusal
from hyperpod_rehearsal.standins.fuse.wire import FuseRequest
from hyperpod_rehearsal.standins.mountpoint_s3.client import ObjectHead, S3Client
from hyperpod_rehearsal.standins.mountpoint_s3.filesystem import MountRules, NameOperations
from hyperpod_rehearsal.standins.mountpoint_s3.reader import ObjectReader
from hyperpod_rehearsal.standins.mountpoint_s3.tree import REMOTE, UNOPENED, WRITING, Inode, Tree
from hyperpod_rehearsal.standins.mountpoint_s3.writer import ObjectWriter


class _OpenFile:
    """An open file: of `reader` and `writer` one is set. flushed: it was closed by a process once."""

    def __init__(
        self, node: Inode, reader: Optional[ObjectReader] = None, writer: Optional[ObjectWriter] = None
    ) -> None:
        self.node = node
        self.reader = reader
        self.writer = writer
        self.flushed = False


class Files:
    """Handles of open files and directories."""

    def __init__(self, tree: Tree, names: NameOperations, client: S3Client, pool: Executor, rules: MountRules) -> None:
        self._tree = tree
        self._names = names
        self._client = client
        self._pool = pool
        self._rules = rules
        self._lock = threading.RLock()
        self._handles = itertools.count(1)
        self._open_files: Dict[int, _OpenFile] = {}
        self._listings: Dict[int, List[Tuple[bytes, int, int]]] = {}

    def handlers(self) -> Dict[int, Handler]:
        """Return the handler of each opcode."""
        return {
            wire.OPEN: self.open,
            wire.READ: self.read,
            wire.WRITE: self.write,
            wire.FLUSH: self.flush,
            wire.FSYNC: self.fsync,
            wire.RELEASE: self.release,
            wire.OPENDIR: self.opendir,
            wire.READDIR: self.readdir,
            wire.RELEASEDIR: self.releasedir,
        }

    def open(self, request: FuseRequest) -> bytes:
        """Open a file for reading or writing.

        Raises EPERM where an object would have to be changed in place, or be read while it is written.
        """
        flags = wire.U32.unpack_from(request.body)[0]
        if flags & (os.O_SYNC | os.O_DSYNC):
            raise Refusal(errno.EINVAL, "O_SYNC and O_DSYNC are not supported")
        node = self._tree.require_node(request.node)
        if node.directory:
            raise Refusal(errno.EISDIR, "is a directory")
        access, truncate = flags & os.O_ACCMODE, bool(flags & os.O_TRUNC)
        self._complete_upload_of_closed_writer(node)
        if node.status == REMOTE and access != os.O_WRONLY and node.parent is not None:
            self._require_current_node(node)
        overwrite = self._rules.allow_overwrite and truncate
        with self._lock:
            if access == os.O_WRONLY or (access == os.O_RDWR and (node.status == UNOPENED or overwrite)):
                return wire.open_reply(self._open_for_writing(node, request.pid, overwrite))
            if node.status != REMOTE:
                raise Refusal(errno.EPERM, f"{self._tree.object_key(node)} is not readable while being written")
            reader = ObjectReader(
                self._client, self._pool, self._tree.object_key(node), node.head, self._rules.read_part
            )
            handle = next(self._handles)
            self._open_files[handle] = _OpenFile(node, reader=reader)
            node.readers.add(handle)
            return wire.open_reply(handle)

    def _complete_upload_of_closed_writer(self, node: Inode) -> None:
        """A file that its opener has closed counts as written, even if the kernel has not released it yet."""
        with self._lock:
            open_file = None
            if node.writer is not None:
                open_file = self._open_files.get(node.writer)
        if (
            open_file is not None
            and open_file.writer is not None
            and (open_file.flushed or open_file.writer.state != "open")
        ):
            if open_file.writer.state == "open":
                self._complete_upload(open_file.writer, node)
            node.writer = None

    def _require_current_node(self, node: Inode) -> None:
        """Look the object up in S3; raise ENOENT when it is missing, ESTALE when it is another file now."""
        if node.parent is not None:
            current = self._tree.find_child_locally_or_in_s3(node.parent, node.name)
        else:
            current = node
        if current is None:
            raise Refusal(errno.ENOENT, "no such file")
        if current is not node:
            raise Refusal(errno.ESTALE, f"{self._tree.object_key(node)} is another file now")

    def _open_for_writing(self, node: Inode, pid: int, overwrite: bool) -> int:
        key = self._tree.object_key(node)
        if node.writer is not None:
            raise Refusal(errno.EPERM, f"{key} is already being written")
        if node.readers:
            raise Refusal(errno.EPERM, f"{key} is not writable while being read")
        if node.status == REMOTE and not overwrite:
            raise Refusal(errno.EPERM, f"{key} exists; it can be overwritten with --allow-overwrite and O_TRUNC only")
        node.status, node.head = WRITING, ObjectHead(0, time.time(), "")
        handle = next(self._handles)
        self._open_files[handle] = _OpenFile(
            node, writer=ObjectWriter(self._client, self._pool, key, pid, self._rules.write_part)
        )
        node.writer = handle
        return handle

    def _complete_upload(self, writer: ObjectWriter, node: Inode) -> None:
        try:
            writer.complete()
        except Refusal:
            node.status = REMOTE  # what S3 has, if anything, shows again
            raise
        if node.status == WRITING:
            self._tree.mark_uploaded_with_ancestors(node, ObjectHead(writer.offset, time.time(), writer.etag))

    def _open_file_of_request(self, request: FuseRequest) -> _OpenFile:
        open_file = self._open_files.get(request.file_handle())
        if open_file is None:
            raise Refusal(errno.EBADF, "no such handle")
        return open_file

    def read(self, request: FuseRequest) -> bytes:
        """Bytes of the version that was opened."""
        open_file = self._open_file_of_request(request)
        _, offset, size = wire.IN_READ.unpack_from(request.body)
        if open_file.reader is None:
            raise Refusal(errno.EBADF, "file handle is not open for reads")
        return open_file.reader.read(offset, size)

    def write(self, request: FuseRequest) -> bytes:
        """Append data to the upload; only writes in order are accepted."""
        open_file = self._open_file_of_request(request)
        handle, offset, size = wire.IN_READ.unpack_from(request.body)
        if open_file.writer is None:
            raise Refusal(errno.EBADF, "file handle is not open for writes")
        if open_file.flushed:
            if open_file.node.writer != handle:
                raise Refusal(errno.EBADF, "file handle has been invalidated by a newer handle opened")
            open_file.flushed = False
        try:
            count = open_file.writer.write(offset, request.body[wire.IN_WRITE_SIZE : wire.IN_WRITE_SIZE + size])
        except Refusal:
            open_file.node.status = REMOTE
            raise
        open_file.node.head = ObjectHead(open_file.writer.offset, time.time(), "")
        return wire.WRITE_OUT.pack(count, 0)

    def flush(self, request: FuseRequest) -> bytes:
        """Complete the upload at the close(2) of the process that opened the file, so that it gets the error."""
        open_file = self._open_file_of_request(request)
        open_file.flushed = True
        if open_file.writer is not None:
            if open_file.writer.state == "failed":
                raise Refusal(errno.EIO, "upload already terminated")
            if open_file.writer.offset and request.pid == open_file.writer.pid:
                self._complete_upload(open_file.writer, open_file.node)
        return b""

    def fsync(self, request: FuseRequest) -> bytes:
        """Complete the upload: the object is visible, and later writes fail."""
        open_file = self._open_file_of_request(request)
        if open_file.writer is not None:
            self._complete_upload(open_file.writer, open_file.node)
        return b""

    def release(self, request: FuseRequest) -> bytes:
        """The last reference is gone. A writer that was killed has its object published as far as it came, as
        Mountpoint does: a checkpoint needs a manifest that is written last."""
        with self._lock:
            open_file = self._open_files.pop(request.file_handle(), None)
        if open_file is None:
            return b""
        node = open_file.node
        node.readers.discard(request.file_handle())
        try:
            if open_file.writer is not None and open_file.writer.state == "open":
                self._complete_upload(open_file.writer, node)
        finally:
            if node.writer == request.file_handle():
                node.writer = None
        return b""

    def opendir(self, request: FuseRequest) -> bytes:
        """List a directory as it is now and keep the listing under a new handle."""
        entries = self._names.list_directory(self._tree.require_node(request.node))
        with self._lock:
            handle = next(self._handles)
            self._listings[handle] = entries
        return wire.open_reply(handle)

    def readdir(self, request: FuseRequest) -> bytes:
        """Entries of the listing, sorted."""
        handle, offset, size = wire.IN_READ.unpack_from(request.body)
        return wire.pack_directory(self._listings.get(handle, []), offset, size)

    def releasedir(self, request: FuseRequest) -> bytes:
        """Forget the listing."""
        self._listings.pop(request.file_handle(), None)
        return b""
