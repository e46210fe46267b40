"""The nodes that the kernel knows, each held by an O_PATH descriptor.

A descriptor follows its file through renames and unlinks, on this node or another, and keeps the inode number from
being used again while the kernel refers to it.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from typing import Dict, Tuple

from hyperpod_rehearsal.standins.fuse.wire import ROOT


class _OpenInode:
    __slots__ = ("descriptor", "key", "lookups")

    def __init__(self, descriptor: int, key: Tuple[int, int]) -> None:
        self.descriptor = descriptor
        self.key = key
        self.lookups = 0


class Nodes:
    """Node id <-> file. Safe for threads."""

    def __init__(self, root: str) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._lock = threading.Lock()
        descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        node = _OpenInode(descriptor, (status.st_dev, status.st_ino))
        self._nodes: Dict[int, _OpenInode] = {ROOT: node}
        self._by_key: Dict[Tuple[int, int], int] = {node.key: ROOT}
        self._next = ROOT + 1

    def descriptor(self, node: int) -> int:
        """The O_PATH descriptor of a node. Raises OSError ESTALE for one that was forgotten."""
        known_node = self._nodes.get(node)
        if known_node is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return known_node.descriptor

    def proc_path(self, node: int) -> str:
        """A path that leads to the node's file, whatever its name is now."""
        return f"/proc/self/fd/{self.descriptor(node)}"

    def look_up_and_count(self, parent: int, name: bytes) -> Tuple[int, os.stat_result]:
        """The node of an entry, counted as one lookup, and its status. Raises OSError, ENOENT above all."""
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.descriptor(parent))
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        with self._lock:
            number = self._by_key.get(key)
            if number is None:
                number = self._next
                self._next += 1
                self._nodes[number] = _OpenInode(descriptor, key)
                self._by_key[key] = number
            else:
                os.close(descriptor)
            self._nodes[number].lookups += 1
        return number, status

    def forget(self, number: int, count: int) -> None:
        """The kernel drops `count` lookups."""
        with self._lock:
            node = self._nodes.get(number)
            if node is None or number == ROOT:
                return
            node.lookups -= count
            if node.lookups <= 0:
                del self._nodes[number]
                self._by_key.pop(node.key, None)
                os.close(node.descriptor)
