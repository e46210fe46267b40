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
from hyperpod_kit.untrusted.files import too_large

PIECE = 1 << 20


def read(store: Store, name: str, most: int) -> bytes:
    """As `Store.read`. Raises CheckpointError for a hole, FileNotFoundError, NotAnObject, OSError."""
    if most <= SMALL or not is_path(store.url):
        return store.read(name, most)
    reader = store.open_read(name)
    try:
        if reader.size > most:
            raise too_large(name, reader.size, most, NotAnObject)
        parts: List[bytes] = []
        done = 0
        while done < reader.size:
            piece = bytearray(min(PIECE, reader.size - done))
            count = reader.read_into(memoryview(piece), done)
            if not count:
                break
            del piece[count:]
            require_solid(name, piece, done)
            parts.append(bytes(piece))
            done += count
        return b"".join(parts)
    finally:
        reader.close()


def require_solid(name: str, piece: Union[bytes, bytearray, memoryview], begin: int) -> None:
    """That this piece of a file, from its byte `begin` on, is none of a hole. Raises CheckpointError."""
    data = bytes(piece)
    if name.endswith(".json"):
        is_hole = 0 in data
    else:
        is_hole = len(data) == PIECE and not data.strip(b"\0")
    if is_hole:
        raise CheckpointError(f"{name} has a hole behind its byte {begin}, which no program of ours leaves")
