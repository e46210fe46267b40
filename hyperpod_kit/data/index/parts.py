"""What an indexing run has found so far, file by file, so that the next one goes on: appended, and read up to the first
record that is not whole."""

from __future__ import annotations

import io
import os
import struct
import time
import zlib
from typing import IO

import numpy as np

from hyperpod_kit.data.formats.table import Scan
from hyperpod_kit.untrusted import by_descriptor

_MAGIC = b"hpkpart1"
_HEAD = struct.Struct("<8sIQI")
"""Magic, bytes of the key, bytes of the scan with its checksum, checksum of the key."""

_COUNTS = struct.Struct("<3Q")
"""Samples, places at which reading can begin, records that are none."""

_CHECKSUM_BYTES = 4
"""Bytes of a scan's checksum, its last ones."""

_MAX_KEY_BYTES = 64 << 10
"""Bytes of a key, which has a path in it: what is longer is no key, however long the file is."""

_FLUSH_SECONDS = 5.0
"""Seconds between two flushes to disk."""


class Parts:
    """The scans in `folder`, by a key that names the file and what it was. `digest`: another one is another part."""

    def __init__(self, folder: str, digest: str) -> None:
        by_descriptor.make_directories(folder)
        self._path = os.path.join(folder, f"scans-{digest}")
        self._locations: dict[str, tuple[int, int]] = {}
        self._stream: IO[bytes] = by_descriptor.open_stream_for_writing(self._path, "a+b")  # closed by flush
        end = self._load_locations_and_find_valid_end()
        self._stream.truncate(end)
        self._flushed = time.monotonic()

    def _load_locations_and_find_valid_end(self) -> int:
        """Note where each record lies; returns where the last whole one ends."""
        self._stream.seek(0)
        at = 0
        size = os.fstat(self._stream.fileno()).st_size
        while True:
            head = self._stream.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return at
            magic, key_length, length, check = _HEAD.unpack(head)
            begin = at + _HEAD.size + key_length
            if magic != _MAGIC or key_length > _MAX_KEY_BYTES or begin + length > size:
                return at
            key = self._stream.read(key_length)
            if zlib.crc32(key) != check:
                return at
            self._locations[key.decode("utf-8", "surrogateescape")] = (begin, length)
            at = begin + length
            self._stream.seek(at)

    def read_scan_if_intact(self, key: str) -> Scan | None:
        """Return the scan of a key; None when there is none that is whole."""
        location = self._locations.get(key)
        if location is None:
            return None
        self._stream.seek(location[0])
        data = self._stream.read(location[1])
        end = len(data) - _CHECKSUM_BYTES
        if end < _COUNTS.size or zlib.crc32(memoryview(data)[:end]) != int.from_bytes(data[end:], "little"):
            return None
        count, points, skipped = _COUNTS.unpack_from(data)
        at = _COUNTS.size
        text_at = at + 12 * count + 16 * points
        if text_at > end:
            return None
        try:
            digest = data[text_at:end].decode()
        except UnicodeDecodeError:
            return None
        starts = np.frombuffer(data, "<u8", count, at)
        lengths = np.frombuffer(data, "<u4", count, at + 8 * count)
        points_array = np.frombuffer(data, "<u8", 2 * points, at + 12 * count).reshape(-1, 2)
        return Scan(starts, lengths, digest, skipped, points_array)

    def append_scan(self, key: str, scan: Scan) -> None:
        """Keep a scan."""
        body = io.BytesIO()
        body.write(_COUNTS.pack(len(scan.starts), len(scan.points), scan.skipped))
        body.write(np.ascontiguousarray(scan.starts, "<u8").tobytes())
        body.write(np.ascontiguousarray(scan.lengths, "<u4").tobytes())
        body.write(np.ascontiguousarray(scan.points, "<u8").tobytes())
        body.write(scan.digest.encode())
        data = body.getvalue()
        name = key.encode("utf-8", "surrogateescape")
        self._stream.write(
            _HEAD.pack(_MAGIC, len(name), len(data) + _CHECKSUM_BYTES, zlib.crc32(name))
            + name
            + data
            + zlib.crc32(data).to_bytes(4, "little")
        )
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._stream.flush()
            self._flushed = time.monotonic()

    def flush_and_close(self) -> None:
        """Write everything to the file and close it."""
        self._stream.close()
