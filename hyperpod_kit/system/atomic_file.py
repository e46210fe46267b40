"""A file that is replaced whole or not at all: a reader sees the old one or the new one, never a part.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import BinaryIO, Iterator, Optional, Tuple, Union

from hyperpod_kit.untrusted import by_descriptor, walk
from hyperpod_kit.untrusted.files import create_exclusively

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def open_for_atomic_replace(
    path: Union[str, os.PathLike[str]],
    mode: Optional[int] = None,
    *,
    owner: Optional[Tuple[int, int]] = None,
    durable: bool = False,
) -> Iterator[BinaryIO]:
    """Open a new file beside `path`, to be written and read, that takes its place when the block ends; it is
    removed when the block raises.

    `mode`: exactly this, or what the umask leaves of 0666. `owner`: (uid, gid), from before its first byte.
    `durable`: its bytes are on disk before it takes the place. The directory may be another user's: the
    way there leads through no link of that user's, the new file's name cannot be foreseen, and nothing that
    is there already is opened. Raises Untrusted, OSError.
    """
    parent, name = os.path.split(os.fspath(path))
    directory_fd = walk.open_traversable(parent)
    try:
        with _open_replacement_in(directory_fd, name, mode, owner=owner, durable=durable) as stream:
            yield stream
    finally:
        os.close(directory_fd)


@contextlib.contextmanager
def _open_replacement_in(
    directory_fd: int, name: str, mode: Optional[int], *, owner: Optional[Tuple[int, int]] = None, durable: bool
) -> Iterator[BinaryIO]:
    # node/machine/files.py finds by this name what a killed process left.
    partial = f"{name}.{os.getpid()}.{os.urandom(8).hex()}.partial"
    if mode is None:
        handle = os.open(partial, _CREATE, 0o666, dir_fd=directory_fd)
    else:
        handle = create_exclusively(partial, mode, directory_fd=directory_fd)
    try:
        with os.fdopen(handle, "w+b") as stream:
            if owner is not None:
                os.fchown(handle, *owner)
            yield stream
            if durable:
                stream.flush()
                os.fsync(handle)
        os.replace(partial, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=directory_fd)
        raise


def write_atomically(
    path: Union[str, os.PathLike[str]],
    data: bytes,
    mode: Optional[int] = None,
    *,
    owner: Optional[Tuple[int, int]] = None,
    durable: bool = False,
) -> None:
    """Replace `path` atomically by a file that holds `data`; parameters as for `open_for_atomic_replace`.

    Raises Untrusted, OSError.
    """
    with open_for_atomic_replace(path, mode, owner=owner, durable=durable) as stream:
        stream.write(data)


def write_atomically_in_directory(
    directory_fd: int, name: str, data: bytes, mode: Optional[int] = None, *, durable: bool = False
) -> None:
    """Replace the file `name` of an open directory atomically by one that holds `data`; parameters as for
    `open_for_atomic_replace`.

    Raises OSError.
    """
    with _open_replacement_in(directory_fd, name, mode, durable=durable) as stream:
        stream.write(data)


def move_into_place(part: Union[str, os.PathLike[str]], path: Union[str, os.PathLike[str]]) -> None:
    """Move a complete file that another program has written to `path`, once its bytes are on disk.

    Both are in one file system. Raises Untrusted, OSError.
    """
    handle = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    by_descriptor.rename(part, path)
