"""What an indexing run has found so far, file by file, so that the next one goes on: appended, and read up to the first
record that is not whole."""

from __future__ import annotations

import io
import os
import time
import zlib
from typing import IO

import numpy as np

from hyperpod_kit.data.formats.table import Scan
from hyperpod_kit.untrusted import by_descriptor

_MAGIC = b"hpkpart1"
_EVERY = 5.0
"""Seconds between two flushes to disk."""


class Parts:
    """The scans in `folder`, by a key that names the file and what it was. `digest`: another one is another part."""

    def __init__(self, folder: str, digest: str) -> None:
        by_descriptor.make_directories(folder)
        self._path = os.path.join(folder, f"scans-{digest}")
        self._places: dict[str, tuple[int, int]] = {}
        self._stream: IO[bytes] = by_descriptor.stream(self._path, "a+b")  # closed by flush
        end = self._find()
        self._stream.truncate(end)
        self._flushed = time.monotonic()

    def _find(self) -> int:
        """Note where each record lies; where the last whole one ends."""
        self._stream.seek(0)
        at = 0
        size = os.fstat(self._stream.fileno()).st_size
        while True:
            head = self._stream.read(24)
            if len(head) < 24 or head[:8] != _MAGIC:
                return at
            key_length, length, check = (
                int.from_bytes(head[8:12], "little"),
                int.from_bytes(head[12:20], "little"),
                int.from_bytes(head[20:24], "little"),
            )
            key = self._stream.read(key_length)
            begin = at + 24 + key_length
            if begin + length > size or zlib.crc32(key) != check:
                return at
            self._places[key.decode("utf-8", "surrogateescape")] = (begin, length)
            at = begin + length
            self._stream.seek(at)

    def get(self, key: str) -> Scan | None:
        """The scan of a key; None when there is none that is whole."""
        place = self._places.get(key)
        if place is None:
            return None
        self._stream.seek(place[0])
        data = self._stream.read(place[1])
        if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return None
        count, points, skipped = np.frombuffer(data[:24], "<u8").tolist()
        at = 24
        starts = np.frombuffer(data, "<u8", count, at)
        lengths = np.frombuffer(data, "<u4", count, at + 8 * count)
        found = np.frombuffer(data, "<u8", 2 * points, at + 12 * count).reshape(-1, 2)
        text = data[at + 12 * count + 16 * points : -4]
        return Scan(starts, lengths, text.decode(), skipped, found)

    def put(self, key: str, scan: Scan) -> None:
        """Keep a scan."""
        body = io.BytesIO()
        body.write(np.array([len(scan.starts), len(scan.points), scan.skipped], "<u8").tobytes())
        body.write(np.ascontiguousarray(scan.starts, "<u8").tobytes())
        body.write(np.ascontiguousarray(scan.lengths, "<u4").tobytes())
        body.write(np.ascontiguousarray(scan.points, "<u8").tobytes())
        body.write(scan.digest.encode())
        data = body.getvalue()
        name = key.encode("utf-8", "surrogateescape")
        self._stream.write(
            _MAGIC
            + len(name).to_bytes(4, "little")
            + (len(data) + 4).to_bytes(8, "little")
            + zlib.crc32(name).to_bytes(4, "little")
            + name
            + data
            + zlib.crc32(data).to_bytes(4, "little")
        )
        if time.monotonic() - self._flushed > _EVERY:
            self._stream.flush()
            self._flushed = time.monotonic()

    def flush(self) -> None:
        """All of it is in the file, which is closed."""
        self._stream.close()
