"""Names and nodes: what S3 has, and what exists on this mount only until it is uploaded."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import Executor
from typing import Dict, List, Optional, Set, Tuple

from hyperpod_rehearsal.standins.fuse.session import Refusal
from hyperpod_rehearsal.standins.fuse.wire import ROOT
from hyperpod_rehearsal.standins.mountpoint_s3.client import ObjectHead, S3Client, S3Failure

REMOTE, UNOPENED, WRITING = "remote", "unopened", "writing"
"""A node's status: in S3; made here and not yet written (local directories too); being written."""


class Inode:
    """A file or directory. valid: monotonic time until which its attributes need not be asked for again."""

    __slots__ = ("directory", "head", "lookups", "name", "number", "parent", "readers", "status", "valid", "writer")

    def __init__(
        self, number: int, parent: Optional[Inode], name: str, directory: bool, status: str, head: ObjectHead
    ) -> None:
        self.number = number
        self.parent = parent
        self.name = name
        self.directory = directory
        self.status = status
        self.head = head
        self.lookups = 0
        self.valid = 0.0
        self.writer: Optional[int] = None  # handle that writes it
        self.readers: Set[int] = set()  # handles that read it


class Tree:
    """All nodes that the kernel knows or that are local. Safe for threads."""

    def __init__(self, client: S3Client, pool: Executor, prefix: str, ttl: float) -> None:
        """prefix: of all keys, empty or ending in `/`; ttl: seconds that metadata are believed."""
        self._client = client
        self._pool = pool
        self._prefix = prefix
        self._ttl = ttl
        self._lock = threading.RLock()
        self.root = Inode(ROOT, None, "", True, REMOTE, ObjectHead(0, time.time(), ""))
        self._nodes: Dict[int, Inode] = {ROOT: self.root}
        self._children: Dict[Tuple[int, str], Inode] = {}
        self._next = ROOT + 1

    def require_node(self, number: int) -> Inode:
        """The node of that number. Raises Refusal ENOENT."""
        node = self._nodes.get(number)
        if node is None:
            raise Refusal(errno.ENOENT, "no such node")
        return node

    def object_key(self, node: Inode) -> str:
        """Key of a file, or of a directory without its final `/`."""
        names = []
        while node.parent is not None:
            names.append(node.name)
            node = node.parent
        return self._prefix + "/".join(reversed(names))

    def directory_prefix(self, node: Inode) -> str:
        """What the keys inside a directory start with."""
        if node is self.root:
            return self._prefix
        return self.object_key(node) + "/"

    def find_child_locally_or_in_s3(self, parent: Inode, name: str) -> Optional[Inode]:
        """The child, local or as S3 has it now, or None. Raises Refusal EIO when S3 fails."""
        child = self._children.get((parent.number, name))
        if child is not None and child.status != REMOTE:
            return child
        directory, head = self._query_directory_and_object(self.directory_prefix(parent) + name)
        with self._lock:
            child = self._children.get((parent.number, name))
            if child is not None and child.status != REMOTE:
                return child
            if not directory and head is None:
                self._children.pop((parent.number, name), None)
                return None
            if child is None or child.directory != directory:
                child = self._add_node(parent, name, directory, REMOTE)
            if head is not None and not directory:
                child.head = head
            child.valid = time.monotonic() + self._ttl
            return child

    def _query_directory_and_object(self, key: str) -> Tuple[bool, Optional[ObjectHead]]:
        """Whether there is a directory, and the object. A directory shadows an object of the same name."""
        inside = self._pool.submit(self._client.list_page, key + "/", limit=1)
        try:
            head = self._client.head(key)
            listing = inside.result()
        except S3Failure as err:
            raise Refusal(errno.EIO, f"HeadObject/ListObjectsV2 failed for {key}: {err}") from None
        return bool(listing.objects or listing.prefixes), head

    def _add_node(self, parent: Inode, name: str, directory: bool, status: str) -> Inode:
        node = Inode(self._next, parent, name, directory, status, ObjectHead(0, time.time(), ""))
        self._next += 1
        self._nodes[node.number] = node
        self._children[parent.number, name] = node
        return node

    def add_local_node(self, parent: Inode, name: str, directory: bool) -> Inode:
        """A node that S3 does not know of. Raises Refusal EEXIST."""
        taken = self.find_child_locally_or_in_s3(parent, name) is not None  # asks S3, so not under the lock
        with self._lock:
            if taken or (parent.number, name) in self._children:
                raise Refusal(errno.EEXIST, f"{name} exists")
            return self._add_node(parent, name, directory, UNOPENED)

    def mark_uploaded_with_ancestors(self, node: Inode, head: ObjectHead) -> None:
        """Mark a node, and the local directories above it, as in S3."""
        with self._lock:
            node.status, node.head, node.valid = REMOTE, head, 0.0
            above = node.parent
            while above is not None and above.status != REMOTE:
                above.status = REMOTE
                above = above.parent

    def remove_name(self, node: Inode) -> None:
        """The name is gone; handles that are open keep the node."""
        with self._lock:
            if node.parent is not None and self._children.get((node.parent.number, node.name)) is node:
                del self._children[node.parent.number, node.name]

    def local_children(self, parent: Inode) -> List[Inode]:
        """Return the children that S3 does not have."""
        with self._lock:
            return [
                node
                for (number, _), node in self._children.items()
                if number == parent.number and node.status != REMOTE
            ]

    def count_lookup(self, node: Inode) -> None:
        """Count one more lookup of the node by the kernel."""
        with self._lock:
            node.lookups += 1
            self._nodes[node.number] = node

    def forget(self, number: int, count: int) -> None:
        """The kernel drops `count` lookups; local and open nodes stay."""
        with self._lock:
            node = self._nodes.get(number)
            if node is None or node is self.root:
                return
            node.lookups -= count
            if node.lookups > 0 or node.status != REMOTE or node.writer is not None or node.readers:
                return
            if any(parent == number for parent, _ in self._children):
                return
            del self._nodes[number]
            self.remove_name(node)
