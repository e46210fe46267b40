"""From what a user writes to a store."""

from __future__ import annotations

import os
import re
from typing import Tuple, Union

from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.memory import memory_store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.checkpoint.repository.store.restricted import RestrictedStore

Where = Union[str, Store]
"""A root as people write it, or one that is open."""

MOUNTINFO = "/proc/self/mountinfo"
MOUNTPOINT = "mountpoint-s3"
"""What Mountpoint for Amazon S3 calls itself in the table of mounts, with the type `fuse`."""


def open_store(root: str) -> Store:
    """The store of a checkpoint root: a path, `s3://bucket/prefix`, or `memory://name` in this process.

    Touches nothing. Raises CheckpointError (S3 without boto3).
    """
    scheme, slashes, _ = root.partition("://")
    if slashes and scheme == "s3":
        from hyperpod_kit.checkpoint.repository.store.s3 import connect

        return connect(root)
    if slashes and scheme == "memory":
        return memory_store(root)
    path = os.path.abspath(root)
    return RestrictedStore(path) if mount_of(path) == ("fuse", MOUNTPOINT) else PosixStore(path)


def as_store(where: Where) -> Store:
    """`where` itself, or the store that it names. Raises as `open_store`."""
    return open_store(os.fspath(where)) if isinstance(where, (str, os.PathLike)) else where


def is_path(root: str) -> bool:
    """Whether a root is a place in the file system."""
    return "://" not in root


def mount_of(path: str) -> Tuple[str, str]:
    """(file system type, source) of the mount on which `path` lies, which need not exist; ("", "") when unknown.

    See proc_pid_mountinfo(5): fields 5 (mount point, with octal escapes), and type and source behind " - ".
    """
    real = os.path.realpath(path)
    best, answer = -1, ("", "")
    try:
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return answer
    for line in lines:
        before, _, behind = line.partition(" - ")
        fields, rest = before.split(" "), behind.split(" ")
        if len(fields) < 5 or len(rest) < 2:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[4]).rstrip("/")
        # Of two mounts on one point, the later covers the earlier.
        if (real == point or real.startswith(point + "/")) and len(point) >= best:
            best, answer = len(point), (rest[0], rest[1])
    return answer
