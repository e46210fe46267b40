"""A package's file: out of the bundle, or from its pinned URL with a deadline; either way its sha256 decides.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from typing import BinaryIO, List, Optional

from hyperpod_kit.errors import BundleIntegrityError, NodeError
from hyperpod_kit.model.clients import Package
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.timing import wait_for
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor

DOWNLOAD_SECONDS = 180.0
"""Seconds in which a download must succeed, all attempts together."""

SOCKET_SECONDS = 15.0
"""Longest silence of a server."""

LARGEST = 1 << 30
"""Bytes: no client is a tenth of that, and a stream without an end must not fill the disk."""

WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)


def obtain_verified_file(node: Node, package: Package, *, seconds: float = DOWNLOAD_SECONDS) -> str:
    """Path of the package's file, verified just now. Raises BundleIntegrityError, NodeError."""
    if not package.url:
        path = f"{node.paths.bundle}/{package.bundle_path}"
        digest = sha256_of(path)
        if digest is None:
            raise NodeError(
                f"{package.bundle_path} is not in the bundle", hint="hyperpod-kit upload with the same version"
            )
        if digest != package.sha256:
            raise BundleIntegrityError(package.bundle_path, package.sha256, digest)
        return path
    path = f"{node.paths.package_cache}/{package.sha256}.deb"
    if sha256_of(path) != package.sha256:
        _download_verified_with_retries(node, package, path, seconds)
    return path


def delete_downloaded_file(node: Node, package: Package) -> None:
    """Remove a downloaded file that has served its purpose."""
    if package.url:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(f"{node.paths.package_cache}/{package.sha256}.deb")


def sha256_of(path: str) -> Optional[str]:
    """Digest of a file, None when there is none."""
    try:
        with open(path, "rb") as stream:
            return _sha256(stream)
    except FileNotFoundError:
        return None


def _sha256(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    for block in iter(lambda: stream.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()


def _download_verified_with_retries(node: Node, package: Package, path: str, seconds: float) -> None:
    by_descriptor.make_directories(os.path.dirname(path), 0o700)
    end = node.clock.monotonic() + seconds
    errors: List[str] = []

    def try_download() -> Optional[bool]:
        try:
            with atomic_file.open_for_atomic_replace(path) as stream:
                _download_once_into_stream(node, package.url, stream, end)
                stream.seek(0)
                digest = _sha256(stream)
                if digest != package.sha256:
                    raise NodeError(
                        f"{package.url}: expected sha256 {package.sha256}, found {digest}",
                        hint="the file behind the url is another one, or hyperpod_kit.clients has a wrong sha256",
                    )
        except urllib.error.HTTPError as err:
            if err.code not in WORTH_ANOTHER_TRY:
                raise NodeError(
                    f"{package.url}: HTTP {err.code} {err.reason}",
                    hint="correct `url` under hyperpod_kit.clients, or give the package as a file",
                ) from err
            errors.append(f"HTTP {err.code}")
            return None
        except (OSError, http.client.HTTPException) as err:  # URLError is an OSError
            errors.append(str(getattr(err, "reason", err)) or type(err).__name__)
            return None
        return True

    if wait_for(try_download, seconds=seconds, clock=node.clock, first=1.0, longest=15.0) is None:
        raise NodeError(
            f"{package.url}: no download within {seconds:g} s: {errors[-1]}",
            hint="give the package as a file: it then travels in the bundle, and no internet is needed",
        )


def _download_once_into_stream(node: Node, url: str, stream: BinaryIO, end: float) -> None:
    """Download the URL into the stream, once. Raises OSError or http.client.HTTPException for anything that
    another try may cure.

    The resolver has a deadline of its own (resolv.conf), every other wait has one here.
    """
    remaining = max(1.0, min(SOCKET_SECONDS, end - node.clock.monotonic()))
    with urllib.request.urlopen(url, timeout=remaining) as response:
        announced = response.headers.get("Content-Length")
        while True:
            # read1: `read` would wait for a whole block from a server that trickles, for as long as it likes.
            block = response.read1(1 << 16)
            if not block:
                break
            stream.write(block)
            if stream.tell() > LARGEST:
                raise NodeError(f"{url}: more than {LARGEST >> 20} MiB, which is no client")
            if node.clock.monotonic() > end:
                raise OSError(f"{stream.tell()} bytes in time, of {announced or 'an unknown number'}")
        if announced is not None and stream.tell() != int(announced):
            raise OSError(f"the connection broke after {stream.tell()} of {announced} bytes")
