"""index.bin, second version: a pattern of each kind of shard once, and of each shard what is its own.

    8 bytes     magic
    zlib        JSON {"patterns": [[names, kinds], ...], "shards": [[pattern, [base, boxes, whole]], ...]}
    16 bytes    blake2b-128 of everything before

Names are those of shard_table; shards are in the order of their numbers. Its size grows with the number of tensors and
with the number of shards, not with their product. The other version (index.py) names every piece: it is for shards in
which tensors have gaps, which this one cannot say. rows.encode_index_file chooses.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, Dict, List, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.format.shard_table import ShardPattern, ShardTable, decode_pattern, decode_table
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import parse

MAGIC = b"HPKIDX2\n"
_DIGEST = 16
_ALWAYS = 8 << 20
"""Bytes of text that any index may have."""
_RATIO = 64
"""Bytes of text that each of its bytes may stand for beyond that: those of real layouts were seen to stand for 16."""


def encode(pattern_and_table_texts: Sequence[Tuple[str, str]]) -> bytes:
    """Return the bytes of index.bin. `pattern_and_table_texts`: of each shard the text of its pattern, and that
    of the rest of its table. Raise CheckpointError when it would be too large to be read again."""
    numbers: Dict[str, int] = {}
    shard_texts = [
        f"[{numbers.setdefault(pattern, len(numbers))},{table_text}]" for pattern, table_text in pattern_and_table_texts
    ]
    text = f'{{"patterns":[{",".join(numbers)}],"shards":[{",".join(shard_texts)}]}}'.encode()
    if len(text) > layout.LARGEST_SMALL:
        raise CheckpointError(
            f"{layout.INDEX_FILE} would say {len(text)} bytes, expected at most {layout.LARGEST_SMALL}"
        )
    packed = zlib.compress(text, 1)
    if len(text) > _max_text_bytes(len(packed)):
        packed = zlib.compress(text, 0)  # as no reader would unpack it
    body = MAGIC + packed
    return body + hashlib.blake2b(body, digest_size=_DIGEST).digest()


def decode(data: bytes) -> List[ShardTable]:
    """Undo `encode`. Raises CheckpointError unless every byte is as it was written."""
    body = memoryview(data)[:-_DIGEST]
    if len(data) < len(MAGIC) + _DIGEST or bytes(body[: len(MAGIC)]) != MAGIC:
        raise CheckpointError(f"{layout.INDEX_FILE} is not an index of this format, or torn")
    if hashlib.blake2b(body, digest_size=_DIGEST).digest() != data[-_DIGEST:]:
        raise CheckpointError(f"{layout.INDEX_FILE} is torn or damaged: its own digest does not match")
    try:
        return _decode_tables(parse.parse_json_object(_decompress_bounded(body[len(MAGIC) :]), layout.LARGEST_SMALL))
    except (ValueError, TypeError, KeyError, IndexError, zlib.error) as err:
        raise CheckpointError(f"{layout.INDEX_FILE} contradicts itself: {err}") from None


def _max_text_bytes(compressed_bytes: int) -> int:
    """Return how many bytes of text so many compressed bytes may unpack to: a small file must not cost
    gigabytes."""
    return min(layout.LARGEST_SMALL, max(_ALWAYS, _RATIO * compressed_bytes))


def _decompress_bounded(data: memoryview) -> bytes:
    """Decompress zlib data. Raise ValueError where so few bytes unpack to more than an index may have."""
    work = zlib.decompressobj()
    text = work.decompress(data, _max_text_bytes(len(data)))
    if work.unconsumed_tail or not work.eof or work.unused_data:
        raise ValueError("it ends too early, or says too much")
    return text


def _decode_tables(body: Dict[str, Any]) -> List[ShardTable]:
    if not isinstance(body["patterns"], list) or not isinstance(body["shards"], list):
        raise ValueError("patterns and shards are lists")
    patterns: List[ShardPattern] = [decode_pattern(pattern) for pattern in body["patterns"]]
    tables = []
    for number, table_body in body["shards"]:
        if type(number) is not int or not 0 <= number < len(patterns):
            raise ValueError(f"a shard is of pattern {str(number)[:40]}")
        tables.append(decode_table(patterns[number], table_body))
    return tables
