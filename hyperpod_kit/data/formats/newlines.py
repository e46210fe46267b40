"""Where the lines of a file end, and the digests of its pieces, at the speed of the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.formats import digests
from hyperpod_kit.data.reading.local_file import LocalFile
from hyperpod_kit.data.reading.source_files import SourceFile
from hyperpod_kit.errors import ChangedFile

_STREAMS = 3
"""Parts of a file that are read at a time, each from its beginning to its end by a descriptor of its own: one stream
does not keep a disk busy, and two that share a descriptor disturb its read-ahead."""
_STEP_BYTES = 1 << 20
"""Bytes that are read and searched at a time: they are still in the processor's cache when they are searched."""
_NEWLINE = np.uint8(10)


class SearchedPiece(NamedTuple):
    """A piece of a file: where lines end in it, its digest, how long it is."""

    ends: npt.NDArray[np.int64]
    digest: bytes
    size: int


def find_newlines_and_digest_pieces(file: SourceFile, advance: Callable[[int], None]) -> list[SearchedPiece]:
    """Return the pieces of a file in order, each with its line ends and digest. Raises ChangedFile, OSError."""
    if not file.size:
        return []
    if file.size <= min(_STEP_BYTES, digests.PIECE_BYTES):
        return [_read_and_search_piece(file, 0, advance)]
    places = range(0, file.size, digests.PIECE_BYTES)
    if not isinstance(file, LocalFile):
        with ThreadPoolExecutor(_STREAMS) as pool:
            return list(pool.map(lambda at: _read_and_search_piece(file, at, advance), places))
    if len(places) < 2 * _STREAMS:
        return _search_pieces(file, places, advance)
    each = -(-len(places) // _STREAMS)
    with ThreadPoolExecutor(_STREAMS) as pool:
        parts = [places[first : first + each] for first in range(0, len(places), each)]
        results = pool.map(lambda part: _reopen_and_search_pieces(file, part, advance), parts)
        return [piece for pieces in results for piece in pieces]


def _read_and_search_piece(file: SourceFile, at: int, advance: Callable[[int], None]) -> SearchedPiece:
    data = file.read(at, min(digests.PIECE_BYTES, file.size - at))
    advance(len(data))
    ends = (np.frombuffer(data, np.uint8) == _NEWLINE).nonzero()[0]
    if at:
        ends = ends + at
    return SearchedPiece(ends, digests.digest_of_piece(data), len(data))


def _reopen_and_search_pieces(file: LocalFile, places: range, advance: Callable[[int], None]) -> list[SearchedPiece]:
    with contextlib.closing(LocalFile(file.path)) as again:
        if (again.size, again.mtime_ns) != (file.size, file.mtime_ns):
            raise ChangedFile(f"{file.path} changed while it was read: is it being written?")
        return _search_pieces(again, places, advance)


def _search_pieces(file: LocalFile, places: range, advance: Callable[[int], None]) -> list[SearchedPiece]:
    """Search pieces one after another, in the same memory: new memory for each costs as much as the search in it."""
    buffer = np.empty(min(digests.PIECE_BYTES, file.size), np.uint8)
    mask_buffer = np.empty(min(_STEP_BYTES, len(buffer)), bool)
    pieces = []
    for at in places:
        ends, size = [np.zeros(0, np.int64)], 0
        while size < len(buffer):
            step = buffer[size : size + _STEP_BYTES]
            count = file.read_into(step.data, at + size)
            if not count:
                break
            mask = np.equal(step[:count], _NEWLINE, out=mask_buffer[:count])
            ends.append(np.flatnonzero(mask) + (at + size))
            size += count
        pieces.append(SearchedPiece(np.concatenate(ends), digests.digest_of_piece(buffer[:size].data), size))
        advance(size)
    return pieces
