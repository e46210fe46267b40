"""From what a user writes to a store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Mapping, Tuple, Union

from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.system import mountinfo

if TYPE_CHECKING:
    PathLike = os.PathLike[str]
else:
    PathLike = os.PathLike  # Python 3.8 has no `os.PathLike[str]`, and as text nobody could resolve it elsewhere

StoreOrRoot = Union[str, PathLike, Store]
"""A root as people write it, or one that is open."""

MOUNTINFO = "/proc/self/mountinfo"
MOUNTPOINT = "mountpoint-s3"
"""What Mountpoint for Amazon S3 calls itself in the table of mounts, with the type `fuse`."""


def _open_s3_store(root: str) -> Store:
    from hyperpod_kit.checkpoint.repository.store.s3 import connect  # what speaks HTTP takes long to import

    return connect(root)


def _open_memory_store(root: str) -> Store:
    from hyperpod_kit.checkpoint.repository.store.memory import get_or_create_memory_store  # few roots are such

    return get_or_create_memory_store(root)


SCHEMES: Mapping[str, Callable[[str], Store]] = {"s3": _open_s3_store, "memory": _open_memory_store}
"""Scheme of a URL -> what opens it; everything else is a path."""


def open_store(root: str) -> Store:
    """Return the store of a checkpoint root: a path, `s3://bucket/prefix`, or `memory://name` in this process.

    Reads and writes nothing in it. Raise CheckpointError (no bucket, no region).
    """
    scheme, slashes, _ = root.partition("://")
    if slashes and scheme in SCHEMES:
        return SCHEMES[scheme](root)
    path = os.path.abspath(root)
    if mount_type_and_source(path) == ("fuse", MOUNTPOINT):
        from hyperpod_kit.checkpoint.repository.store.restricted import RestrictedStore  # few roots are such

        return RestrictedStore(path)
    return PosixStore(path)


def as_store(store_or_root: StoreOrRoot) -> Store:
    """`store_or_root` itself, or the store that it names. Raises as `open_store`."""
    if isinstance(store_or_root, (str, os.PathLike)):
        return open_store(os.fspath(store_or_root))
    return store_or_root


def is_path(root: str) -> bool:
    """Return whether a root is a path in the file system, and no URL."""
    return "://" not in root


def mount_type_and_source(path: str) -> Tuple[str, str]:
    """Return (file system type, source) of the mount on which `path` lies, which need not exist; ("", "") when
    unknown."""
    try:
        entry = mountinfo.mount_containing_path(mountinfo.read_mountinfo(MOUNTINFO), os.path.realpath(path))
    except OSError:
        entry = None
    if entry is None:
        return ("", "")
    return (entry.fs_type, entry.source)
