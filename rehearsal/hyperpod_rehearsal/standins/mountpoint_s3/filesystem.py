"""Mountpoint's rules for names and directories; those for open files are in `files.py`."""

from __future__ import annotations

import errno
import stat
import time
from typing import Dict, List, NamedTuple, Tuple

from hyperpod_rehearsal.standins.fuse import wire
from hyperpod_rehearsal.standins.fuse.session import Handler, Refusal
from hyperpod_rehearsal.standins.fuse.wire import FuseRequest
from hyperpod_rehearsal.standins.mountpoint_s3.client import S3Client, S3Failure
from hyperpod_rehearsal.standins.mountpoint_s3.tree import REMOTE, Inode, Tree


class MountRules(NamedTuple):
    """What the command line allows and shows. ttl: seconds; modes: permission bits; sizes: bytes."""

    allow_delete: bool = False
    allow_overwrite: bool = False
    uid: int = 0
    gid: int = 0
    directory_mode: int = 0o755
    file_mode: int = 0o644
    ttl: float = 0.1
    read_part: int = 8 << 20
    write_part: int = 8 << 20


class NameOperations:
    """Operations on names. Raises Refusal with the error numbers of Mountpoint."""

    def __init__(self, tree: Tree, client: S3Client, rules: MountRules) -> None:
        self._tree = tree
        self._client = client
        self._rules = rules

    def handlers(self) -> Dict[int, Handler]:
        """What to call for each opcode. CREATE is left out: the kernel falls back to MKNOD and OPEN, as Mountpoint
        has it."""
        return {
            wire.LOOKUP: self.lookup,
            wire.GETATTR: self.getattr,
            wire.SETATTR: self.refuse_or_ignore_setattr,
            wire.MKNOD: self.mknod,
            wire.MKDIR: self.mkdir,
            wire.UNLINK: self.unlink,
            wire.RMDIR: self.rmdir,
            wire.RENAME: self.refuse_rename,
            wire.RENAME2: self.refuse_rename,
            wire.LINK: self.refuse_link,
            wire.SYMLINK: self.refuse_link,
            wire.STATFS: self.statfs,
        }

    def list_directory(self, node: Inode) -> List[Tuple[bytes, int, int]]:
        """Entries of a directory, sorted: what S3 lists and what is local."""
        prefix = self._tree.directory_prefix(node)
        names: Dict[str, bool] = {}
        token = None
        try:
            while True:
                page = self._client.list_page(prefix, token=token)
                for key, _ in page.objects:
                    name = key[len(prefix) :]
                    if name and not name.endswith("/"):
                        names.setdefault(name, False)
                for key in page.prefixes:
                    names[key[len(prefix) : -1]] = True  # a directory shadows a file of the same name
                token = page.token
                if not token:
                    break
        except S3Failure as err:
            raise Refusal(errno.EIO, f"ListObjectsV2 failed for {prefix}: {err}") from None
        for child in self._tree.local_children(node):
            names.setdefault(child.name, child.directory)
        entries = [
            (name.encode("utf-8", "surrogateescape"), directory)
            for name, directory in names.items()
            if name not in ("", ".", "..")
        ]
        return [(b".", 4, 1), (b"..", 4, 1)] + [
            (name, 4 if directory else 8, (1 << 62) + number)
            for number, (name, directory) in enumerate(sorted(entries))
        ]

    def _pack_node_attr(self, node: Inode) -> bytes:
        rules = self._rules
        if node.directory:
            mode, size, links = stat.S_IFDIR | rules.directory_mode, 0, 2
        else:
            mode, size, links = stat.S_IFREG | rules.file_mode, node.head.size, 1
        moment = int(node.head.modified)
        return wire.ATTR.pack(
            node.number,
            size,
            (size + 511) // 512,
            moment,
            moment,
            moment,
            0,
            0,
            0,
            mode,
            links,
            rules.uid,
            rules.gid,
            0,
            4096,
            0,
        )

    def _attribute_ttl(self, node: Inode) -> float:
        if node.status == REMOTE:
            return self._rules.ttl
        return 0.0

    def _count_and_pack_entry(self, node: Inode) -> bytes:
        self._tree.count_lookup(node)
        ttl = self._attribute_ttl(node)
        return wire.entry_reply(node.number, self._pack_node_attr(node), ttl, ttl)

    def _require_child_of_request(self, request: FuseRequest, skip: int = 0) -> Inode:
        parent = self._tree.require_node(request.node)
        child = self._tree.find_child_locally_or_in_s3(parent, _decode_name(request.trailing_names(skip)[0]))
        if child is None:
            raise Refusal(errno.ENOENT, "no such file")
        return child

    def lookup(self, request: FuseRequest) -> bytes:
        """Objects of other clients are seen at once: nothing absent is remembered."""
        return self._count_and_pack_entry(self._require_child_of_request(request))

    def getattr(self, request: FuseRequest) -> bytes:
        """Attributes, asked for again once they are older than the metadata TTL."""
        node = self._tree.require_node(request.node)
        if node.parent is not None and node.status == REMOTE and not node.directory and time.monotonic() > node.valid:
            now = self._tree.find_child_locally_or_in_s3(node.parent, node.name)
            if now is None:
                raise Refusal(errno.ENOENT, "no such file")
            if now is not node:
                raise Refusal(errno.ESTALE, f"{self._tree.object_key(node)} is another file now")
        return wire.attr_reply(self._pack_node_attr(node), self._attribute_ttl(node))

    def refuse_or_ignore_setattr(self, request: FuseRequest) -> bytes:
        """Nothing of an object can be changed; on a file not yet uploaded it is accepted and has no effect."""
        node = self._tree.require_node(request.node)
        if node.status == REMOTE:
            raise Refusal(
                errno.EPERM,
                f"{self._tree.object_key(node)} is remote and its attributes cannot be modified; to "
                f"overwrite, mount with --allow-overwrite and open with O_TRUNC",
            )
        return wire.attr_reply(self._pack_node_attr(node), self._attribute_ttl(node))

    def mknod(self, request: FuseRequest) -> bytes:
        """Create a local regular file, to be opened for writing next."""
        mode, _, _, _ = wire.IN_MKNOD.unpack_from(request.body)
        if not stat.S_ISREG(mode):
            raise Refusal(errno.EINVAL, "only regular files can be created")
        name = _decode_name(request.trailing_names(wire.IN_MKNOD.size)[0])
        return self._count_and_pack_entry(
            self._tree.add_local_node(self._tree.require_node(request.node), name, directory=False)
        )

    def mkdir(self, request: FuseRequest) -> bytes:
        """Create a local directory: S3 gets it with the first object inside."""
        name = _decode_name(request.trailing_names(wire.IN_MKDIR.size)[0])
        return self._count_and_pack_entry(
            self._tree.add_local_node(self._tree.require_node(request.node), name, directory=True)
        )

    def unlink(self, request: FuseRequest) -> bytes:
        """Delete the object, where that is allowed."""
        if not self._rules.allow_delete:
            raise Refusal(errno.EPERM, "Deletes are disabled. Use '--allow-delete' mount option to enable it.")
        node = self._require_child_of_request(request)
        if node.directory:
            raise Refusal(errno.EISDIR, "is a directory")
        if node.status != REMOTE:
            raise Refusal(errno.EPERM, f"{self._tree.object_key(node)} cannot be unlinked while being written")
        try:
            self._client.delete(self._tree.object_key(node))
        except S3Failure as err:
            raise Refusal(errno.EIO, f"DeleteObject failed: {err}") from None
        self._tree.remove_name(node)
        return b""

    def rmdir(self, request: FuseRequest) -> bytes:
        """Only a directory that is local and empty."""
        node = self._require_child_of_request(request)
        if not node.directory:
            raise Refusal(errno.ENOTDIR, "not a directory")
        if node.status == REMOTE:
            raise Refusal(errno.EPERM, f"{self._tree.object_key(node)} is a remote directory and cannot be removed")
        if self._tree.local_children(node):
            raise Refusal(errno.ENOTEMPTY, "directory not empty")
        self._tree.remove_name(node)
        return b""

    def refuse_rename(self, request: FuseRequest) -> bytes:
        """Refuse: general purpose buckets have no rename."""
        node = self._require_child_of_request(
            request, wire.IN_RENAME2.size if request.opcode == wire.RENAME2 else wire.U64.size
        )
        if node.directory:
            raise Refusal(errno.EPERM, f"{self._tree.object_key(node)} is a directory and cannot be renamed")
        if node.status != REMOTE:
            raise Refusal(errno.EPERM, f"{self._tree.object_key(node)} cannot be renamed while being written")
        raise Refusal(errno.ENOSYS, "rename is not supported on this bucket")

    def refuse_link(self, request: FuseRequest) -> bytes:
        """Raise EPERM: neither hard nor symbolic links are supported."""
        raise Refusal(errno.EPERM, "links are not supported")

    def statfs(self, request: FuseRequest) -> bytes:
        """Return figures of a practically endless file system."""
        blocks = (1 << 64) // 1024 // 4096
        return wire.STATFS_OUT.pack(blocks, blocks, blocks, blocks, blocks, 4096, 255, 4096, 0, *[0] * 6)


def _decode_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
