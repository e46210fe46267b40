"""JSON that proves itself without being canonical: its digest is its last key, `self`, of all that stands before it.

extra.json keeps the order in which things were saved, so it cannot be what the manifest is (`manifest.seal_json`). The
manifest proves it while there is one; this proves it where the manifest was lost. Who does not know the key passes over
it.
"""

from __future__ import annotations

import re

from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.errors import CheckpointError

_SEAL = re.compile(rb',"self":"(' + digest.SMALL.encode() + rb':[0-9a-f]{32})"\}\n')
_LENGTH = len(b',"self":""}\n') + len(digest.small_object_digest(b""))


def seal(json_object_text: str) -> bytes:
    """Return the bytes of a JSON object, `{…}`, that has some keys, with its own digest appended."""
    body = json_object_text.encode()[:-1]
    return body + b',"self":"' + digest.small_object_digest(body).encode() + b'"}\n'


def without_seal(data: bytes) -> bytes:
    """Return the text without its seal, as builds before 0.1.0 wrote it; `data` itself when it has none."""
    if _SEAL.fullmatch(data[-_LENGTH:]):
        return data[:-_LENGTH] + b"}\n"
    return data


def require_intact_seal(data: bytes, what: str) -> None:
    """Raises CheckpointError unless every byte is as it was written."""
    seal_match = _SEAL.fullmatch(data[-_LENGTH:])
    if seal_match is None:
        raise CheckpointError(
            f"{what} does not prove itself: it is torn, or was written by a build before 0.1.0, whose manifest alone "
            "proved it"
        )
    if digest.small_object_digest(data[:-_LENGTH]).encode() != seal_match.group(1):
        raise CheckpointError(f"{what} is torn or damaged: its own digest does not match")
