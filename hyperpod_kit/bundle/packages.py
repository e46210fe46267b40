"""Packages of mount clients that travel in the bundle, so that a node needs no internet for them.

Each is checked before it ships: a node must not be where one learns that a file is another version, another
architecture or half a download.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import tarfile
import zlib
from pathlib import Path
from typing import Iterator, Optional

from hyperpod_kit.config.settings.settings import ListedPackage, Settings
from hyperpod_kit.errors import Absent, BundleError, RunError, Untrusted
from hyperpod_kit.model.clients import ARCHITECTURES, client_of_own_package_or_empty
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.untrusted import files

DIRECTORY = "packages/"
"""Where they lie in the bundle."""

AR_MAGIC = b"!<arch>\n"
_LARGEST = 1 << 30
"""Bytes of a package."""
_LARGEST_CONTROL = 64 << 20
"""Bytes of its control archive, unpacked: one file that people write, scripts, and a line for each other file."""
_LARGEST_FIELDS = 1 << 20
_MEMORY = 192 << 20
"""Bytes for a decoder of xz, of which -9 takes 65 MiB."""


def read_packages_given_as_files(settings: Settings) -> Iterator[tuple[str, bytes]]:
    """Yield (path in the bundle, content) of every package that is given as a file.

    Raises BundleError when a file is not there or is not the package that it is listed as.
    """
    for listed in settings.packages:
        if listed.file:
            yield listed.package.bundle_path, _read_verified_package(settings.directory, listed)


def _read_verified_package(directory: Path, listed: ListedPackage) -> bytes:
    package, path = listed.package, directory / listed.file
    try:
        data = files.read_file_or_pipe(str(path), _LARGEST)
    except (OSError, Untrusted) as err:
        if isinstance(err, OSError):
            reason = err.strerror
        else:
            reason = str(err)
        raise BundleError(
            f"{path}: {reason}", hint=f"put {package.name} {package.version} there, or correct `file`"
        ) from err
    digest = hashlib.sha256(data).hexdigest()
    if digest != package.sha256:
        raise BundleError(
            f"{path}: expected sha256 {package.sha256}, found {digest}",
            hint="download it again, or correct `sha256` under hyperpod_kit.clients",
        )
    fields = parse_deb_fields_empty_if_unreadable(data)
    if fields is None:
        raise BundleError(f"{path} is not a Debian package", hint="specify the .deb file of the client")
    expected = {"Package": package.name, "Version": package.version, "Architecture": ARCHITECTURES[package.arch]}
    for field, value in expected.items():
        if fields and fields.get(field) != value:
            raise BundleError(
                f"{path}: {field} is {fields.get(field)}, listed as {value}",
                hint="correct hyperpod_kit.clients: the values must be those of the file",
            )
    return data


def make_client_entry_for_deb_file(path: Path, client: str = "") -> dict[str, str]:
    """The entry of `hyperpod_kit.clients` for a package file. `client`: what it is for, where its name does not say it.

    Raises Absent when it cannot be read, BundleError.
    """
    try:
        data = files.read_file_or_pipe(str(path), _LARGEST)
    except OSError as err:
        raise Absent(f"cannot read {path}: {err.strerror}") from err
    fields = parse_deb_fields_empty_if_unreadable(data)
    if fields is None:
        raise BundleError(f"{path} is not a Debian package")
    fields = fields or _query_dpkg_fields(path)
    architecture = {debian_name: written for written, debian_name in ARCHITECTURES.items()}.get(fields["Architecture"])
    if architecture is None:
        raise BundleError(f"{path} is for {fields['Architecture']}: nodes have {', '.join(ARCHITECTURES.values())}")
    entry = {"name": fields["Package"]}
    if not client_of_own_package_or_empty(fields["Package"]):
        entry["client"] = client
    return {
        **entry,
        "version": fields["Version"],
        "arch": architecture,
        "file": str(path),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _query_dpkg_fields(path: Path) -> dict[str, str]:
    names = ("Package", "Version", "Architecture")
    form = "".join(f"${{{name}}}\\n" for name in names)
    try:
        output = LocalRunner().run(["dpkg-deb", f"--showformat={form}", "--show", str(path)], timeout=60).stdout
    except RunError as err:
        raise BundleError(f"only dpkg-deb can read {path}: {err.message}", hint="try it on Debian or Ubuntu") from err
    return dict(zip(names, output.splitlines()))


def parse_deb_fields_empty_if_unreadable(data: bytes) -> Optional[dict[str, str]]:
    """Fields of a package's control file; None when `data` is no package, {} when it cannot be read here.

    A zstd archive, which Ubuntu's own packages are, is one that Python cannot read: the node looks with dpkg itself.
    """
    members = _ar_members_or_empty(data)
    name = next((name for name in members if name.startswith("control.tar")), None)
    if "debian-binary" not in members or name is None or not any(name.startswith("data.tar") for name in members):
        return None
    try:
        if name.endswith((".gz", ".xz")):
            raw = _decompress_gz_or_xz_within_limit(name, members[name])
        elif name.endswith(".tar"):
            raw = members[name]
        else:
            return {}
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            member = archive.getmember("./control")
            file = archive.extractfile(member) if member.isreg() and member.size <= _LARGEST_FIELDS else None
            text = file.read().decode() if file else ""
    except (OSError, EOFError, lzma.LZMAError, zlib.error, tarfile.TarError, KeyError, ValueError, OverflowError):
        return None
    return dict(re.findall(r"^([A-Za-z-]+): *(.*?) *$", text, re.MULTILINE))


def _decompress_gz_or_xz_within_limit(name: str, packed: bytes) -> bytes:
    """Unpack a member."""
    if name.endswith(".gz"):
        gzipped = zlib.decompressobj(16 + zlib.MAX_WBITS)
        raw, ended = gzipped.decompress(packed, _LARGEST_CONTROL), gzipped.eof
    else:
        xz = lzma.LZMADecompressor(memlimit=_MEMORY)
        raw, ended = xz.decompress(packed, _LARGEST_CONTROL), xz.eof
    if not ended:
        raise EOFError
    return raw


def _ar_members_or_empty(data: bytes) -> dict[str, bytes]:
    """Members of an ar archive, as deb(5) describes it; {} when it is none."""
    members: dict[str, bytes] = {}
    at = len(AR_MAGIC)
    if not data.startswith(AR_MAGIC):
        return members
    while at + 60 <= len(data):
        header = data[at : at + 60]
        size = header[48:58].strip()
        if header[58:] != b"`\n" or not size.isdigit() or at + 60 + int(size) > len(data):
            return {}
        name = header[:16].decode("latin-1").strip().rstrip("/")
        members[name] = data[at + 60 : at + 60 + int(size)]
        at += 60 + int(size) + int(size) % 2
    if at >= len(data):
        return members
    return {}
