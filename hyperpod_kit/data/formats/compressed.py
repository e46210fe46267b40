"""Lines in compressed files. Reading can begin where a gzip member or a zstd frame begins, so a file of many of them is
read like a plain one, and a file that is a single one is decompressed from its beginning by each process that needs it.

`start` and `length` of a line are those in the plain text; `points` says where the members begin, here and there.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol

import numpy as np

from hyperpod_kit.data.formats import lines, table
from hyperpod_kit.data.formats.table import RecordReader, Scan
from hyperpod_kit.data.reading import digests
from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles
from hyperpod_kit.errors import BadRecord, DataError

_PIECE_BYTES = 1 << 20
_MAX_MEMORY_BYTES = 16 << 20
"""Plain bytes of a member beyond which they go to a file without a name."""


_MAX_OUTPUT = 4 << 20
"""Plain bytes that come out of a decompressor at a time, however well they were compressed."""

_INPUT_BYTES = 2 << 10
"""Compressed bytes that go into one that cannot be told how many may come out: of zstd at most 128 KiB for four."""

_MAX_WINDOW_BYTES = 128 << 20
"""Plain bytes that a zstd frame may look back, which are kept in memory: what `zstd -d` takes without --long."""

_RATIO, _SMALL = 1024, 64 << 20
"""Plain bytes for a compressed one, beyond the first plain ones."""

_MAX_MEMBERS_ON_DISK = 64
"""Members in files without a name, for each process."""

_MIN_FREE_BYTES = 1 << 30
"""Bytes that are left free where these files are."""


class MemberDecoder(Protocol):
    """A decompressor of one member."""

    eof: bool
    rest: bytes
    """What was given beyond its end."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress more bytes; yields the plain ones a part at a time."""


class GzipMember:
    """See MemberDecoder."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)
        self.eof = False
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """See MemberDecoder."""
        while data:
            out = self._decoder.decompress(data, _MAX_OUTPUT)
            data = self._decoder.unconsumed_tail
            self.eof, self.rest = self._decoder.eof, self._decoder.unused_data
            if out:
                yield out


class ZstdFrame:
    """See MemberDecoder."""

    def __init__(self) -> None:
        import zstandard

        self._decoder: Any = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
        self.eof = False
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """See MemberDecoder."""
        for at in range(0, len(data), _INPUT_BYTES):
            out = self._decoder.decompress(data[at : at + _INPUT_BYTES])
            self.eof = self._decoder.eof
            if self.eof:
                self.rest = self._decoder.unused_data + data[at + _INPUT_BYTES :]
            for begin in range(0, len(out), _MAX_OUTPUT):
                yield out[begin : begin + _MAX_OUTPUT]
            if self.eof:
                return


def zstd_or_gzip_by_name(path: str) -> str:
    """Return `gzip` or `zstd`, by the name."""
    return "zstd" if path.lower().endswith(".zst") else "gzip"


def decompress(
    kind: str,
    path: str,
    read: Callable[[int, int], bytes],
    member_offset: int,
    end_offset: int,
    on_member_end: Callable[[int], None],
) -> Iterator[bytes]:
    """Yield the plain text of a file from the member at `member_offset` up to `end_offset`.

    `on_member_end(offset)` is called after each member.
    Raises ValueError for bytes that cannot be decompressed, that end in the middle, or that give more than text
    does.
    """
    decoder: MemberDecoder | None = None
    data, member_at = b"", member_offset
    first, given = member_offset, 0
    while True:
        if not data:
            data = (
                read(member_offset, min(_PIECE_BYTES, end_offset - member_offset))
                if member_offset < end_offset
                else b""
            )
            if not data:
                if decoder is not None:
                    raise ValueError(f"the {kind} member at {member_at} is cut off at {member_offset}")
                return
            member_offset += len(data)
        if decoder is None:
            member_at = member_offset - len(data)
            if kind == "gzip" and not data.strip(b"\0"):
                data = b""  # tape blocks are filled up with zeros
                continue
            decoder = GzipMember() if kind == "gzip" else ZstdFrame()
        parts = decoder.feed(data)
        while True:
            try:
                out = next(parts, b"")
            except Exception as err:  # zlib.error, zstandard.ZstdError: no base of their own
                raise ValueError(f"the {kind} member at {member_at} is corrupt: {err}") from None
            if not out:
                break
            given += len(out)
            _require_plausible_expansion(f"the {kind} member at {member_at}", given, member_offset - first)
            yield out
        data = b""
        if decoder.eof:
            data = decoder.rest
            decoder = None
            on_member_end(member_offset - len(data))


def _require_plausible_expansion(member: str, plain_bytes: int, compressed_bytes: int) -> None:
    if plain_bytes > _SMALL + _RATIO * compressed_bytes:
        raise ValueError(f"{member} expands more than {_RATIO} times, which real data does not")


def scan(file: SourceFile, advance: Callable[[int], None]) -> Scan:
    """Scan every line of the plain text. Raises ValueError for a corrupt member, OSError."""
    kind = zstd_or_gzip_by_name(file.path)
    ends: list[Any] = []
    points = [(0, 0)]
    done, count, previous = 0, 0, -1
    is_json = lines.has_json_name(file.path)
    longest = lines.MAX_BLANK_BYTES if is_json else 1
    blank: set[int] = set()
    """Ends of lines that are a carriage return and nothing else, or of JSON blanks."""
    tail = b""
    pieces = _DigestingReader(file, advance)
    for text in decompress(kind, file.path, pieces.read, 0, file.size, lambda at: points.append((at, -1))):
        for number in range(len(points) - 1, 0, -1):
            if points[number][1] >= 0:
                break
            points[number] = (points[number][0], done)
        newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == 10)
        count += len(newlines)
        table.require_plausible_sample_count(count, file.size)
        ends.append(newlines + done)
        sizes = np.diff(ends[-1], prepend=previous) - 1
        short = (sizes > 0) & (sizes <= longest)
        joined, before = tail + text, len(tail)
        for end, size in zip(newlines[short].tolist(), sizes[short].tolist(), strict=True):
            if _is_blank_json_or_carriage_return(joined[before + end - size : before + end], is_json):
                blank.add(end + done)
        if len(newlines):
            previous = int(ends[-1][-1])
        done += len(text)
        tail = joined[-longest:]
    line_ends = np.concatenate([np.zeros(0, np.int64), *ends])
    if done > previous + 1:  # the last line has no end
        line_ends = np.append(line_ends, done)
        size = done - previous - 1
        if size <= longest and _is_blank_json_or_carriage_return(tail[-size:], is_json):
            blank.add(done)
    starts, lengths = lines.line_spans_from_ends(line_ends)
    is_sample = (lengths > 0) & ~np.isin(line_ends, sorted(blank))
    lines.require_line_lengths_in_bounds(lengths)
    # The end of the last member is where none begins.
    begins = [(raw, at) for raw, at in points if at >= 0 and raw < file.size]
    places = np.array([*begins, (file.size, done)], np.uint64).reshape(-1, 2)
    return Scan(starts[is_sample].astype(np.uint64), lengths[is_sample].astype(np.uint32), pieces.digest(), 0, places)


def _is_blank_json_or_carriage_return(line: bytes, is_json: bool) -> bool:
    if is_json:
        return not line.strip()
    return line == b"\r"


class _DigestingReader:
    """Reads a file from its beginning to its end and digests what it reads."""

    def __init__(self, file: SourceFile, advance: Callable[[int], None]) -> None:
        self._file = file
        self._advance = advance
        self._rest = bytearray()
        self._digests: list[bytes] = []
        self._size = 0

    def read(self, at: int, length: int) -> bytes:
        data = self._file.read(at, length)
        self._rest += data
        self._size += len(data)
        while len(self._rest) >= digests.PIECE_BYTES:
            self._digests.append(digests.digest_of_piece(bytes(self._rest[: digests.PIECE_BYTES])))
            del self._rest[: digests.PIECE_BYTES]
        self._advance(len(data))
        return data

    def digest(self) -> str:
        """Return the digest of all that was read."""
        piece_digests = list(self._digests)
        if self._rest:
            piece_digests.append(digests.digest_of_piece(bytes(self._rest)))
        return digests.digest_of_file(piece_digests, self._size)


class Member:
    """The plain text of one member: in memory, or in a file without a name when it is large."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._file: IO[bytes] | None = None
        self.size = 0
        buffer = bytearray()
        for part in parts:
            self.size += len(part)
            if self._file is None and self.size > _MAX_MEMORY_BYTES:
                self._file = tempfile.TemporaryFile(prefix="hpk-data-")  # noqa: SIM115  # as long as the member
                self._file.write(buffer)
                buffer = bytearray()
            if self._file is not None:
                self._file.write(part)
            else:
                buffer += part
        self._buffer = bytes(buffer)

    @property
    def bytes_in_memory(self) -> int:
        """How many bytes of memory it takes."""
        return len(self._buffer)

    def close(self) -> None:
        """Close its file, which has no name and is gone then."""
        if self._file is not None:
            self._file.close()

    def read(self, at: int, length: int) -> bytes:
        """Read plain bytes."""
        if self._file is None:
            return self._buffer[at : at + length]
        self._file.seek(at)
        return self._file.read(length)


class CompressedReader:
    """Lines by their place in the plain text; the members used last are kept, `memory` bytes of them."""

    def __init__(self, files: SourceFiles, memory: int) -> None:
        self._files = files
        self._memory = memory
        self._members: OrderedDict[tuple[str, int], Member] = OrderedDict()
        self._cached_bytes = 0

    def record(self, file: Any, start: int, length: int) -> bytes:
        """Read the bytes of a line without its end. A line may begin in one member and end in another."""
        begins = file.points["plain"]
        number = int(np.searchsorted(begins, start, side="right")) - 1
        parts = []
        while length > 0:
            inside = start - int(begins[number])
            part = self._cached_member(file, number).read(inside, length)
            if not part and number + 2 >= len(begins):
                raise OSError(5, f"its plain text ends before {start}", file.path)
            parts.append(part)
            start += len(part)
            length -= len(part)
            number += 1
        return b"".join(parts).removesuffix(b"\r")

    def _cached_member(self, file: Any, number: int) -> Member:
        key = (file.path, number)
        member = self._members.get(key)
        if member is not None:
            self._members.move_to_end(key)
            return member
        size = int(file.points["plain"][number + 1]) - int(file.points["plain"][number])
        if size > _MAX_MEMORY_BYTES:
            self._make_room_on_disk(file.path, size)
        member = self._members[key] = self._decompress_member(file, number)
        self._cached_bytes += member.bytes_in_memory
        while self._cached_bytes > self._memory and len(self._members) > 1:
            self._cached_bytes -= self._members.popitem(last=False)[1].bytes_in_memory
        return member

    def _decompress_member(self, file: Any, number: int) -> Member:
        """Decompress a member. Raises BadRecord for one that is corrupt at a second look too."""
        raw, end = int(file.points["raw"][number]), int(file.points["raw"][number + 1])

        def read(at: int, size: int) -> bytes:
            return self._files.read(file, at, size)

        for last in (False, True):
            try:
                return Member(decompress(zstd_or_gzip_by_name(file.path), file.path, read, raw, end, lambda at: None))
            except ValueError as err:
                self._files.close_and_forget_mount(file.path)
                if last:
                    raise BadRecord(
                        f"{file.path}: {err}, although it has the size and time that were indexed"
                    ) from None
        raise AssertionError("the last look returns or raises")

    def _make_room_on_disk(self, path: str, size: int) -> None:
        """Make room for a member on disk by closing those used longest ago. Raises DataError when there is none."""
        directory = tempfile.gettempdir()
        on_disk = [key for key, member in self._members.items() if not member.bytes_in_memory]
        while on_disk and (
            len(on_disk) >= _MAX_MEMBERS_ON_DISK or shutil.disk_usage(directory).free < size + _MIN_FREE_BYTES
        ):
            self._members.pop(on_disk.pop(0)).close()
        free = shutil.disk_usage(directory).free
        if free < size + _MIN_FREE_BYTES:
            raise DataError(
                f"{path} has a member of {size} plain bytes, and {directory} has {free} free, of which "
                f"{_MIN_FREE_BYTES} must stay free",
                hint=(
                    "set TMPDIR to a directory on a larger disk, or compress the file again in members: bgzip, or "
                    "zstd by parts"
                ),
            )


def reader(files: SourceFiles, memory: int) -> RecordReader:
    """See SampleFormat."""
    return CompressedReader(files, memory)
