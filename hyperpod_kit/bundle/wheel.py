"""The wheel of this package that travels in a bundle: a job's venv, conda environment or container installs it.

It is made of the package's files with the standard library, so a kit that came from a checkout makes the same bytes as
one that came from a wheel. Its version is the number of the release and a digest of its contents, 0.1.0+c<digest>: a
commit that changes no file of the package changes neither the wheel nor the bundle, and pip takes two wheels with
different contents for two versions. The members are stored and not compressed, since lib.tar.gz is compressed as a
whole, and compressed bytes differ between versions of zlib.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import stat
import zipfile
from pathlib import Path
from typing import Iterator, Mapping

from hyperpod_kit import extras
from hyperpod_kit.bundle.contents import list_shipped_files
from hyperpod_kit.bundle.sources import EXAMPLE, LICENSE, TREES, Sources
from hyperpod_kit.errors import BundleError
from hyperpod_kit.version import RELEASE

SUFFIX = ".whl"
_MEMBER_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip archive can say."""
_ENTRY_POINTS = b"[console_scripts]\nhyperpod-kit = hyperpod_kit.cli.main:main\n"
_WHEEL = b"Wheel-Version: 1.0\nGenerator: hyperpod-kit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@functools.lru_cache(maxsize=2)
def build_wheel(sources: Sources) -> tuple[str, bytes]:
    """(file name, bytes) of the wheel of these sources. Raises BundleError when one of them is missing."""
    files = dict(_package_files(sources))
    version = f"{RELEASE}+c{_contents_digest(files)}"
    information = f"hyperpod_kit-{version}.dist-info"
    files[f"{information}/METADATA"] = _metadata_text(version).encode()
    files[f"{information}/WHEEL"] = _WHEEL
    files[f"{information}/entry_points.txt"] = _ENTRY_POINTS
    files[f"{information}/licenses/{LICENSE}"] = _read_source(sources.root, LICENSE)
    record = f"{information}/RECORD"
    files[record] = _record_text(files, record)
    return f"hyperpod_kit-{version}-py3-none-any{SUFFIX}", _zip_files(files)


def _package_files(sources: Sources) -> Iterator[tuple[str, bytes]]:
    """(name in the wheel, content) of the package and of the bundle's sources in it, as pyproject.toml places them."""
    for path in list_shipped_files(sources.package):
        if not path.startswith("_bundle/"):
            yield f"hyperpod_kit/{path}", _read_source(sources.package, path)
    for tree in TREES:
        for path in list_shipped_files(sources.root / tree):
            yield f"hyperpod_kit/_bundle/{tree}/{path}", _read_source(sources.root / tree, path)
    for name in (EXAMPLE, LICENSE):
        yield f"hyperpod_kit/_bundle/{name}", _read_source(sources.root, name)


def _read_source(directory: Path, name: str) -> bytes:
    path = f"{directory}/{name}"
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as err:
        raise BundleError(f"{path}: {err.strerror}", hint="install hyperpod-kit again") from err


def _contents_digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(_metadata_text("").encode())
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    return digest.hexdigest()[:12]


def _metadata_text(version: str) -> str:
    """Return the text of METADATA, with what an installer needs; pyproject.toml says more."""
    lines = [
        "Metadata-Version: 2.4",
        "Name: hyperpod-kit",
        f"Version: {version}",
        f"Summary: {extras.SUMMARY}",
        "License-Expression: Apache-2.0",
        f"License-File: {LICENSE}",
        f"Requires-Python: {extras.PYTHON}",
        *(f"Requires-Dist: {requirement}" for requirement in extras.DEPENDENCIES),
    ]
    for extra, requirements in sorted(extras.EXTRAS.items()):
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {requirement}; extra == '{extra}'" for requirement in requirements]
    return "\n".join(lines) + "\n"


def _record_text(files: Mapping[str, bytes], record: str) -> bytes:
    """Return the text of RECORD: each file with its digest and size, and RECORD itself without."""
    lines = [f"{name},sha256={_sha256_base64(data)},{len(data)}\n" for name, data in sorted(files.items())]
    return "".join([*lines, f"{record},,\n"]).encode()


def _sha256_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zip_files(files: Mapping[str, bytes]) -> bytes:
    """A zip archive of these files. The order, times and modes are always the same; `.dist-info` is last, as PEP 427
    recommends."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items(), key=lambda file: (".dist-info/" in file[0], file[0])):
            member = zipfile.ZipInfo(name, _MEMBER_TIME)
            member.create_system = 3  # Unix, which the mode is of, whatever this machine is
            member.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(member, data)
    return buffer.getvalue()
