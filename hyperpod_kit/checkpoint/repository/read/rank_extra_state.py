"""A rank's own part of what is not a tensor: random generators, its `extra`, a loader. It lies in the rank's shard.

A shard has room for it behind its tensors, as the U8 tensor `__hpk__.tree.RRRRR`: JSON, filled up with spaces, so
that thousands of them need not go through one process and one file. extra.json says of each where it begins, its size
and its digest (`blake2b`, as of all small objects): whoever needs one reads its bytes alone. The shard's leaves cover
them too.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple

from hyperpod_kit.checkpoint.repository.format import digest, layout
from hyperpod_kit.checkpoint.repository.format.manifest import is_count
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError, DigestMismatch
from hyperpod_kit.untrusted import parse

_PAGE = 4096
_PIECE = 1 << 20
_ROOT = re.compile(digest.SMALL + ":[0-9a-f]{1,128}")


class RankStateLocation(NamedTuple):
    """The first byte of the text in the file, its size in bytes without what fills it up, and its digest."""

    begin: int
    size: int
    root: str


def reserved_bytes_with_growth_room(text_bytes: int) -> int:
    """Return the bytes that a shard keeps for a text of `text_bytes` bytes: half as much again, so that one that
    grows a little from save to save does not make another layout of it each time."""
    return -(-(text_bytes + text_bytes // 2) // _PAGE) * _PAGE


def locate_in_image(image: memoryview, begin: int, end: int) -> RankStateLocation:
    """Return where the text lies in a shard in memory that has it at [begin, end), with its size and digest."""
    text = bytes(image[begin:end]).rstrip(b" ")
    return RankStateLocation(begin, len(text), digest.small_object_digest(text))


def top_level_keys(text: bytes) -> List[str]:
    """Return the top-level keys of the text. Raise ValueError when it is no JSON object."""
    return list(parse.parse_json_object(text, len(text)))


def parse_location(body: Any) -> RankStateLocation:
    """Parse a location from JSON. Raise ValueError, TypeError."""
    begin, size, root = body
    if not is_count(begin) or not is_count(size) or size > layout.LARGEST_SMALL or not isinstance(root, str):
        raise ValueError(f"a rank's own tree lies at {str(body)[:120]}")
    if _ROOT.fullmatch(root) is None:
        raise ValueError(f"a rank's own tree has the digest {root[:80]!r}")
    return RankStateLocation(begin, size, root)


def read(store: Store, checkpoint_id: str, rank: int, location: RankStateLocation) -> Dict[str, Any]:
    """Read a rank's extra state from its shard and verify it. Raise DigestMismatch, CheckpointError, OSError."""
    name = layout.shard_file(rank)
    reader = store.open_read(f"{checkpoint_id}/{name}")
    try:
        if location.begin + location.size > reader.size:
            raise CheckpointError(f"{name} ends before its own tree: it has {reader.size} bytes")
        data = bytearray()
        while len(data) < location.size:
            piece = bytearray(min(_PIECE, location.size - len(data)))
            count = reader.read_into(memoryview(piece), location.begin + len(data))
            if not count:
                raise CheckpointError(f"{name} is short: its own tree ends at byte {location.begin + len(data)}")
            del piece[count:]
            if 0 in piece:  # a hole, which a file may have for nothing
                raise CheckpointError(f"{name}, its own tree: no JSON behind byte {location.begin + len(data)}")
            data += piece
    finally:
        reader.close()
    actual_digest = digest.small_object_digest(data)
    if actual_digest != location.root:
        raise DigestMismatch(f"{name}, its own tree", location.root, actual_digest)
    try:
        return parse.parse_json_object(data, location.size)
    except ValueError as err:
        raise CheckpointError(f"{name}, its own tree: {err}") from None
