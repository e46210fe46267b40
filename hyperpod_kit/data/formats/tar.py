"""Samples in a tar: neighbouring files whose names are equal up to the first dot are one, as webdataset has them. Files
that macOS adds (`._NAME`, `.DS_Store`) are none."""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hyperpod_kit.data.formats import lines
from hyperpod_kit.data.formats.ranged_file import RangedFile
from hyperpod_kit.data.formats.table import RecordReader, Scan
from hyperpod_kit.data.reading import digests
from hyperpod_kit.data.reading.source_files import SourceFile, SourceFiles
from hyperpod_kit.errors import BadRecord

_BLOCK = 512
_MAX_HEADER_BYTES = 1 << 20
"""Bytes of a header that has a name or attributes, which tarfile reads whole."""
_CHECK_SUM = slice(148, 156)
_NUMBER = rb"[0-7]{6}[0-7 ][\0 ]"
_PLAIN_HEADER = re.compile(
    rb"(?s:(?:%b){3}([0-7]{11})[\0 ][0-7]{11}[\0 ]([0-7]{6})[\0 ]{2}[0\0].{172}(?:\0{8}|%b){2}\0)" % (_NUMBER, _NUMBER)
)
"""What follows the name of a file as nearly all programs write it: its mode, owners, size, time, check sum and kind,
owners by name, no device, and no first part of its name that stands elsewhere."""


class BoundedTarInfo(tarfile.TarInfo):
    """A member of which nothing is read that is larger than it can be. Raises ReadError."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.size < 0:
            raise tarfile.ReadError(f"a member of {self.size} bytes")
        headers = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if (
            self.type in (*headers, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
            and self.size > _MAX_HEADER_BYTES
        ):
            raise tarfile.ReadError(f"a header of {self.size:,} bytes, expected at most {_MAX_HEADER_BYTES:,}")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a member with holes, which may be of any size")
        return super()._proc_member(archive)  # type: ignore[misc]


def read_members(fileobj: Any) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield each member, none of which is kept. Raises ValueError for what is no tar."""
    try:
        with tarfile.open(fileobj=fileobj, mode="r:", tarinfo=BoundedTarInfo) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]
                if member.size < 0 or member.issparse():
                    raise ValueError(f"{member.name} has holes, which may be of any size")
                yield archive, member
    except (tarfile.TarError, EOFError, OverflowError, RecursionError) as err:
        raise ValueError(str(err)) from None


def split_key_and_ending(name: str) -> tuple[str, str]:
    """Split a name into (key, ending): the key goes up to the first dot of the last part."""
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return folder + slash + stem, ending


def is_macos_metadata(name: str) -> bool:
    """Whether a file is one that macOS's tar puts beside the user's own: attributes, and how a window looks."""
    last = name.rpartition("/")[2]
    return last.startswith("._") or last == ".DS_Store" or name.startswith("__MACOSX/")


def scan(file: SourceFile, advance: Callable[[int], None]) -> Scan:
    """Scan every sample. Raises ValueError for what is no tar or ends in the middle, OSError."""
    pieces = digests.digests_of_pieces(file.read, file.size, advance)
    starts: list[int] = []
    ends: list[int] = []
    last: str | None = None
    before = 0
    for _, member in read_members(RangedFile(file.read, file.size)):
        # What comes before a header (of a long name, say) belongs to it.
        begin = before
        before = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
        if not member.isfile():
            last = None
            continue
        if before > file.size:
            raise ValueError(f"{member.name} is cut off")
        if is_macos_metadata(member.name):
            continue
        key, _ = split_key_and_ending(member.name)
        if key == last:
            ends[-1] = before
        else:
            starts.append(begin)
            ends.append(before)
        last = key
    lengths = np.array(ends, np.int64) - np.array(starts, np.int64)
    if lengths.size and int(lengths.max()) > lines.MAX_SAMPLE_BYTES:
        raise ValueError(f"a sample of {int(lengths.max())} bytes, expected less than 4 GiB")
    return Scan(np.array(starts, np.uint64), lengths.astype(np.uint32), digests.digest_of_file(pieces, file.size))


def header_check_sum(header: bytes) -> int:
    """Compute the check sum of a header: the sum of its bytes, with blanks in place of the check sum itself.

    The lower half of Adler-32 is 1 plus the sum of the bytes modulo 65,521, which half a header does not reach. That
    takes a tenth of the time of `sum`.
    """
    half = _BLOCK // 2
    first_sum = (zlib.adler32(header[:half]) & 0xFFFF) - 1
    second_sum = (zlib.adler32(header[half:]) & 0xFFFF) - 1
    return first_sum + second_sum - sum(header[_CHECK_SUM]) + 8 * ord(" ")


def parse_record_if_plain(data: bytes) -> dict[str, Any] | None:
    """Parse a piece of a tar as `parse_record` does, which takes five times as long; None where a member
    is not as nearly all are."""
    record: dict[str, Any] = {}
    at = 0
    while at < len(data):
        header = data[at : at + _BLOCK]
        plain = _PLAIN_HEADER.match(header, 100)
        if plain is None or header_check_sum(header) != int(plain[2], 8):
            return None
        name = header[:100].partition(b"\0")[0].decode(tarfile.ENCODING, "surrogateescape")
        begin = at + _BLOCK
        end = begin + int(plain[1], 8)
        at = begin + -(-(end - begin) // _BLOCK) * _BLOCK
        if at > len(data) or name.endswith("/"):
            return None
        if not is_macos_metadata(name):
            key, ending = split_key_and_ending(name)
            record["__key__"], record[ending] = key, data[begin:end]
    return record or None


def parse_record(data: bytes) -> dict[str, Any]:
    """Parse the sample of a piece of a tar, by tarfile. Raises ValueError."""
    record: dict[str, Any] = {}
    for archive, member in read_members(io.BytesIO(data)):
        if member.isfile() and not is_macos_metadata(member.name):
            key, ending = split_key_and_ending(member.name)
            part = archive.extractfile(member)
            assert part is not None
            record["__key__"], record[ending] = key, part.read()
    return record


class TarReader:
    """Reads a sample by one range: a piece of a tar is a tar."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files

    def record(self, file: Any, start: int, length: int) -> dict[str, Any]:
        """Read a sample: ending -> bytes, and `__key__`. Raises BadRecord."""
        data = self._files.read(file, start, length)
        sample = parse_record_if_plain(data)
        if sample is not None:
            return sample
        try:
            return parse_record(data)
        except ValueError as err:
            raise BadRecord(f"{file.path}: the sample at {start}: {err}") from None


def reader(files: SourceFiles, memory: int) -> RecordReader:
    """See SampleFormat."""
    return TarReader(files)
