"""lib.tar.gz: the vendored sources of a bundle, hundreds of files, as one object.

The tar archive is the same bytes wherever it is made, and its digest is in lib.tar.sha256, which SHA256SUMS lists: so
it is proved before it is opened, and the bundle's id depends on it. The compression around it is not always the same
bytes, since zlib and its replacements choose differently, and nothing depends on those: two archives with the same tar
inside are the same archive.
"""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile
import zlib
from typing import Mapping

from hyperpod_kit.bundle import portable
from hyperpod_kit.errors import BundleError

ARCHIVE = "lib.tar.gz"
TAR_SUM = "lib.tar.sha256"
LIBRARY = "lib/"
"""Below it lie the members of the archive, in the archive and on a node."""

MTIME = 315532800
"""1980-01-01, for each member: some versions of tar warn of a time at the very beginning of 1970."""
MEMBER_MODE = 0o644
BLOCK = 512
LONGEST_NAME = 100
LARGEST = 64 << 20
"""Bytes of a tar archive that is read: a few kilobytes can be compressed gigabytes of zeros."""
LEVEL = 2
"""Of the compression: 6, zlib's own choice, takes three times the processor time for 15 % fewer bytes."""
_GZIP = 16 + zlib.MAX_WBITS
_FOREIGN_HINT = "hyperpod-kit render; tar -tvzf lib.tar.gz shows what it holds"


def make_tar(members: Mapping[str, bytes]) -> bytes:
    """Return the tar archive of these members: sorted by name, with constant times, owners and modes.

    The headers are written here because those of `tarfile` differ between versions of Python. Raises
    BundleError.
    """
    parts = []
    for path, data in sorted(members.items(), key=lambda member: member[0].encode()):
        padding = bytes(-len(data) % BLOCK)
        parts += [_ustar_header(path, len(data)), data, padding]
    parts.append(bytes(2 * BLOCK))
    return b"".join(parts)


def tar_digest_text(archive: bytes) -> bytes:
    """The text of lib.tar.sha256 for an uncompressed archive."""
    return f"{hashlib.sha256(archive).hexdigest()}  lib.tar\n".encode()


@functools.lru_cache(maxsize=1)
def gzip_tar(archive: bytes) -> bytes:
    """Return lib.tar.gz for an uncompressed archive, without name and time."""
    gzip = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)
    return gzip.compress(archive) + gzip.flush()


def gunzip_tar(data: bytes) -> bytes:
    """The tar archive in a lib.tar.gz. Raises BundleError when there is not exactly one whole gzip file."""
    gzip = zlib.decompressobj(_GZIP)
    try:
        archive = gzip.decompress(data, LARGEST + 1)
    except zlib.error as err:
        raise BundleError(f"{ARCHIVE} is damaged: {err}", hint="hyperpod-kit upload") from err
    if len(archive) > LARGEST:
        raise BundleError(f"{ARCHIVE} holds more than {LARGEST >> 20} MiB", hint="hyperpod-kit upload")
    if not gzip.eof:
        raise BundleError(f"{ARCHIVE} is truncated after {len(data)} bytes", hint="hyperpod-kit upload")
    if gzip.unused_data:
        raise BundleError(f"{ARCHIVE} has {len(gzip.unused_data)} bytes behind its end", hint="hyperpod-kit upload")
    return archive


def have_same_contents(first: bytes, second: bytes) -> bool:
    """Whether two lib.tar.gz hold the same tar archive, however they are compressed; False for a damaged one."""
    try:
        return first == second or gunzip_tar(first) == gunzip_tar(second)
    except BundleError:
        return False


def read_members(data: bytes) -> dict[str, bytes]:
    """Return path -> content of every member of a lib.tar.gz; nothing is written anywhere.

    Raises BundleError for a damaged archive, and with its name for a member that no bundle has.
    """
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(gunzip_tar(data)), mode="r:") as archive:
            for member in archive:
                _require_valid_member(member, contents)
                file = archive.extractfile(member)
                contents[member.name] = b""
                if file:
                    contents[member.name] = file.read()
    except tarfile.TarError as err:
        raise BundleError(f"{ARCHIVE} is damaged: {err}", hint="hyperpod-kit upload") from err
    return contents


def _require_valid_member(member: tarfile.TarInfo, earlier: Mapping[str, bytes]) -> None:
    name = member.name
    if not name.startswith(LIBRARY) or not portable.PATH_PATTERN.fullmatch(name):
        raise BundleError(f"{ARCHIVE} has a member {name!r}, which is not a path below {LIBRARY}", hint=_FOREIGN_HINT)
    if not member.isreg():
        raise BundleError(f"{ARCHIVE} has a member {name!r} that is not a plain file", hint=_FOREIGN_HINT)
    if name in earlier:
        raise BundleError(f"{ARCHIVE} has the member {name!r} twice", hint=_FOREIGN_HINT)


def _ustar_header(path: str, size: int) -> bytes:
    """The ustar header of a plain file, as POSIX.1-1988 describes it."""
    name = path.encode()
    if len(name) > LONGEST_NAME:
        raise BundleError(f"{path} is longer than {LONGEST_NAME} bytes, the most that {ARCHIVE} can name")
    before_checksum = b"".join(
        (
            name.ljust(LONGEST_NAME, b"\0"),
            _octal_field(MEMBER_MODE, 8),
            _octal_field(0, 8),  # owner
            _octal_field(0, 8),  # group
            _octal_field(size, 12),
            _octal_field(MTIME, 12),
        )
    )
    after_checksum = b"0" + bytes(100) + b"ustar\x0000" + bytes(32 + 32 + 8 + 8 + 155 + 12)
    checksum = sum(before_checksum) + 8 * ord(" ") + sum(after_checksum)
    return before_checksum + b"%06o\0 " % checksum + after_checksum


def _octal_field(number: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, number)
