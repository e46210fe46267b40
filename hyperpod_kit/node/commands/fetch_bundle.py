"""`hyperpod-kit node fetch`: the objects of a bundle, from S3 into a directory, with the node's own role.

What is to come is what its SHA256SUMS lists; the entry script verifies all of it before anything of it runs.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Dict, Tuple

from hyperpod_kit.errors import NodeError, Unreachable, UsageError
from hyperpod_kit.s3.client import S3HttpClient, S3Refused
from hyperpod_kit.s3.errors import S3NotConfigured
from hyperpod_kit.untrusted import by_descriptor

if TYPE_CHECKING:
    import argparse

SUMS = "SHA256SUMS"
UNLISTED = ("lib.tar.gz", "bundle.json")
"""Objects that have no line in SHA256SUMS: the archive of what is listed below LIBRARY, and the description."""
LIBRARY = "lib/"
LARGEST = 256 << 20
"""Bytes of one object."""
PIECE = 1 << 20

_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_][A-Za-z0-9._@+~-]*(?:/[A-Za-z0-9_][A-Za-z0-9._@+~-]*)*)")
_URI = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(.*[^/])/?")


def fetch_bundle_command(args: argparse.Namespace) -> int:
    """Fetch the bundle at `args.uri` into `args.directory`, which is there. Exit code 0; raises NodeError,
    Unreachable, UsageError."""
    match = _URI.fullmatch(args.uri)
    if match is None:
        raise UsageError(f"{args.uri}: expected s3://BUCKET/PREFIX")
    try:
        client = S3HttpClient(os.environ)
    except S3NotConfigured as err:
        raise Unreachable(str(err), hint=err.hint) from None
    count = fetch_bundle(client, match[1], f"{match[2]}/", args.directory)
    print(f"{count} files of {args.uri}")
    return 0


def fetch_bundle(client: S3HttpClient, bucket: str, prefix: str, directory: str) -> int:
    """Fetch the objects of a bundle, and return how many there are. Raises NodeError, Unreachable."""
    try:
        _fetch_object(client, bucket, prefix, SUMS, directory)
        listed = _listed_digests(os.path.join(directory, SUMS))
        names = [*UNLISTED, *(name for name in listed if not name.startswith(LIBRARY))]
        for name in names:
            digest = _fetch_object(client, bucket, prefix, name, directory)
            if listed.get(name, digest) != digest:
                raise NodeError(f"s3://{bucket}/{prefix}{name}: expected sha256 {listed[name]}, found {digest}")
    except S3Refused as err:
        raise NodeError(f"s3://{bucket}/{prefix}: {err}", hint="the nodes' role needs s3:GetObject on it") from None
    except OSError as err:
        raise Unreachable(f"s3://{bucket}/{prefix}: {err}") from err
    return len(names) + 1


def _listed_digests(path: str) -> Dict[str, str]:
    """Return name -> SHA-256 of each line of SHA256SUMS. Raises NodeError for a line that names no file of a bundle."""
    digests: Dict[str, str] = {}
    with open(path, encoding="ascii", errors="replace") as stream:
        for line in stream:
            digest, name = _parse_line(line.rstrip("\n"))
            digests[name] = digest
    return digests


def _parse_line(line: str) -> Tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise NodeError(f"{SUMS} has the line {line[:80]!r}, which is not a file of a bundle")
    return match[1], match[2]


def _fetch_object(client: S3HttpClient, bucket: str, prefix: str, name: str, directory: str) -> str:
    """Write one object below the directory, and return its SHA-256. Raises S3Refused, OSError, NodeError."""
    path = os.path.join(directory, name)
    by_descriptor.make_parents(path)
    digest, size = hashlib.sha256(), 0
    response = client.get_object(Bucket=bucket, Key=prefix + name)
    handle = by_descriptor.open_own_or_root_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with response["Body"] as body, os.fdopen(handle, "wb") as stream:
        while True:
            piece = body.read(PIECE)
            if not piece:
                return digest.hexdigest()
            size += len(piece)
            if size > LARGEST:
                raise NodeError(f"{name} has more than {LARGEST} bytes, too large for a file of a bundle")
            digest.update(piece)
            stream.write(piece)
