"""Files of a root that are read whole and may be large, read piece by piece: a hole in one costs who made it nothing,
and its reader as much memory as the file says it has bytes.

JSON has no byte 0. In `index.bin` a mebibyte of zeros is no table, whose entries have names, and no deflated text: it
would unpack to more than a table may have.
"""

from __future__ import annotations

from typing import List, Union

from hyperpod_kit.checkpoint.repository.store.base import SMALL, NotAnObject, Store
from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.files import too_large_error

PIECE = 1 << 20


def read_rejecting_holes(store: Store, name: str, max_bytes: int) -> bytes:
    """Read a file as `Store.read` does. Raise CheckpointError for a hole, FileNotFoundError, NotAnObject,
    OSError."""
    if max_bytes <= SMALL or not is_path(store.url):
        return store.read(name, max_bytes)
    reader = store.open_read(name)
    try:
        if reader.size > max_bytes:
            raise too_large_error(name, reader.size, max_bytes, NotAnObject)
        parts: List[bytes] = []
        done = 0
        while done < reader.size:
            piece = bytearray(min(PIECE, reader.size - done))
            count = reader.read_into(memoryview(piece), done)
            if not count:
                break
            del piece[count:]
            require_no_hole(name, piece, done)
            parts.append(bytes(piece))
            done += count
        return b"".join(parts)
    finally:
        reader.close()


def require_no_hole(name: str, piece: Union[bytes, bytearray, memoryview], begin: int) -> None:
    """Raise CheckpointError if this piece of a file, which begins at its byte `begin`, is part of a hole."""
    data = bytes(piece)
    if name.endswith(".json"):
        is_hole = 0 in data
    else:
        is_hole = len(data) == PIECE and not data.strip(b"\0")
    if is_hole:
        raise CheckpointError(f"{name} has a hole behind its byte {begin}, which no program of ours leaves")
