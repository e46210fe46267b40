"""SHA256SUMS and bundle.json: what a bundle consists of, and the name that follows from it.

bundle_id = first 16 hex digits of sha256(SHA256SUMS). SHA256SUMS is what `sha256sum -c` reads on a node: every file
that lies there but itself and bundle.json, sorted as LC_ALL=C sorts. The members of lib.tar.gz have a line each and the
archive has none, since its compressed bytes depend on who compresses. Two bundles with the same id install the same
bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Mapping

FORMAT = "hpk-bundle/2"
SUMS = "SHA256SUMS"
DESCRIPTION = "bundle.json"
_FORMAT = re.compile(r"hpk-bundle/[0-9]{1,6}")
_LINE = re.compile(r"(?P<digest>[0-9a-f]{64}) [ *](?P<place>.+)")


def make_sha256sums(files: Mapping[str, bytes]) -> bytes:
    """The text of SHA256SUMS for these files, which are those of an installed bundle."""
    lines = [
        f"{hashlib.sha256(data).hexdigest()}  {path}\n"
        for path, data in files.items()
        if path not in (SUMS, DESCRIPTION)
    ]
    # Sorted by path, as bytes: the order does not depend on anybody's locale.
    return "".join(sorted(lines, key=lambda line: line[66:].encode())).encode()


def parse_sha256sums(sums_text: bytes) -> dict[str, str]:
    """Place -> hex SHA-256 of a SHA256SUMS. Raises ValueError for text that is none."""
    listed = {}
    for line in sums_text.decode().splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"not a line of {SUMS}: {line[:80]!r}")
        listed[match["place"]] = match["digest"]
    return listed


def compute_bundle_id(sums_text: bytes) -> str:
    """Name of the bundle with this SHA256SUMS: 16 hex digits."""
    return hashlib.sha256(sums_text).hexdigest()[:16]


def make_bundle_json(kit_version: str, identity: str) -> bytes:
    """The text of bundle.json."""
    return (json.dumps({"format": FORMAT, "kit_version": kit_version, "bundle_id": identity}, indent=2) + "\n").encode()


def parse_bundle_format(description_text: bytes) -> str:
    """The format that a bundle.json names, "" when it names none."""
    try:
        about = json.loads(description_text)
    except ValueError:
        return ""
    if not isinstance(about, dict):
        return ""
    written = about.get("format")
    if isinstance(written, str) and _FORMAT.fullmatch(written):
        return written
    return ""
