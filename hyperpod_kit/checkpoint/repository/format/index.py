"""index.bin: which piece of which tensor lies where in which shard, by columns.

    8 bytes     magic
    5 x u64     number of names, bytes of names, bytes of types, number of pieces, number of extents
    u32 x names lengths of the names; the names, UTF-8; the types, joined by a zero byte
    columns     name u32, type u32, shard u32, dimensions u32, partial u32, begin u64: one of each a piece
    extents     shape u64 of all pieces; offsets u64 and full shape u64 of those that are partial
    16 bytes    blake2b-128 of everything before

Little endian. A reader needs it to restore to another number of ranks; everybody else can do without.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from typing import Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.format.shard import Placed, TensorSpec, parse_spec
from hyperpod_kit.errors import CheckpointError

MAGIC = b"HPKIDX1\n"
_HEAD = struct.Struct("<8s5Q")
_DIGEST = 16
_U32, _U64 = next(code for code in "IL" if array(code).itemsize == 4), "Q"


class Piece(NamedTuple):
    """A tensor, or a box of one, in a shard: its bytes are [begin, begin + spec.nbytes) of that file."""

    spec: TensorSpec
    shard: int
    begin: int


class Index(NamedTuple):
    """All pieces of a checkpoint, by shard and then by place."""

    pieces: Tuple[Piece, ...]

    def tensors(self) -> Dict[str, List[Piece]]:
        """Return the pieces of each tensor, by its name."""
        by_name: Dict[str, List[Piece]] = {}
        for piece in self.pieces:
            by_name.setdefault(piece.spec.name, []).append(piece)
        return by_name


def build(by_shard: Mapping[int, Sequence[Placed]]) -> Index:
    """The index of shards whose layouts are known (`shard.parse(...).tensors`)."""
    return Index(
        tuple(Piece(placed.spec, number, placed.begin) for number in sorted(by_shard) for placed in by_shard[number])
    )


def encode(index: Index) -> bytes:
    """The bytes of index.bin."""
    pieces = index.pieces
    names = {name: number for number, name in enumerate(dict.fromkeys(piece.spec.name for piece in pieces))}
    types = {kind: number for number, kind in enumerate(dict.fromkeys(piece.spec.dtype for piece in pieces))}
    encoded = [name.encode() for name in names]
    kinds = b"\0".join(kind.encode() for kind in types)
    boxes = [piece.spec for piece in pieces if piece.spec.full]
    extents = [extent for piece in pieces for extent in piece.spec.shape]
    extents += [extent for spec in boxes for extent in spec.offsets]
    extents += [extent for spec in boxes for extent in spec.full]
    text = b"".join(encoded)
    parts = [
        _HEAD.pack(MAGIC, len(names), len(text), len(kinds), len(pieces), len(extents)),
        _encode_column(_U32, map(len, encoded)),
        text,
        kinds,
        _encode_column(_U32, (names[piece.spec.name] for piece in pieces)),
        _encode_column(_U32, (types[piece.spec.dtype] for piece in pieces)),
        _encode_column(_U32, (piece.shard for piece in pieces)),
        _encode_column(_U32, (len(piece.spec.shape) for piece in pieces)),
        _encode_column(_U32, (int(bool(piece.spec.full)) for piece in pieces)),
        _encode_column(_U64, (piece.begin for piece in pieces)),
        _encode_column(_U64, extents),
    ]
    body = b"".join(parts)
    return body + hashlib.blake2b(body, digest_size=_DIGEST).digest()


def _encode_column(code: str, values: Iterable[int]) -> bytes:
    made = array(code, values)
    if sys.byteorder == "big":
        made.byteswap()
    return made.tobytes()


class _Cursor:
    """Takes one part after the other from the front."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def take_bytes(self, size: int) -> memoryview:
        if size > len(self.data):
            raise ValueError("it ends too early")
        part, self.data = self.data[:size], self.data[size:]
        return part

    def take_column(self, code: str, count: int) -> array[int]:
        made = array(code)
        made.frombytes(self.take_bytes(count * made.itemsize))
        if sys.byteorder == "big":
            made.byteswap()
        return made


def decode(data: bytes) -> Index:
    """Undo `encode`. Raises CheckpointError unless every byte is as it was written."""
    body = memoryview(data)[:-_DIGEST]
    if len(data) < _HEAD.size + _DIGEST or bytes(body[: len(MAGIC)]) != MAGIC:
        raise CheckpointError(f"{layout.INDEX_FILE} is not an index of this format, or torn")
    if hashlib.blake2b(body, digest_size=_DIGEST).digest() != data[-_DIGEST:]:
        raise CheckpointError(f"{layout.INDEX_FILE} is torn or damaged: its own digest does not match")
    try:
        return _decode(body)
    except (ValueError, IndexError) as err:
        raise CheckpointError(f"{layout.INDEX_FILE} contradicts itself: {err}") from None


def _decode(body: memoryview) -> Index:
    cursor = _Cursor(body)
    _, name_count, text_size, kind_size, count, extent_count = _HEAD.unpack(cursor.take_bytes(_HEAD.size))
    lengths = cursor.take_column(_U32, name_count)
    text = _Cursor(cursor.take_bytes(text_size))
    names = [str(text.take_bytes(length), "utf-8") for length in lengths]
    kinds = str(cursor.take_bytes(kind_size), "utf-8").split("\0")
    name, kind, number, dims, partial = (cursor.take_column(_U32, count) for _ in range(5))
    begin = cursor.take_column(_U64, count)
    extents = cursor.take_column(_U64, extent_count)
    if len(cursor.data):
        raise ValueError(f"{len(cursor.data)} bytes too many")
    at = 0

    def take_extents(needed: int) -> Tuple[int, ...]:
        nonlocal at
        at += needed
        if at > extent_count:
            raise ValueError("extents are missing")
        return tuple(extents[at - needed : at])

    shapes = [take_extents(dim) for dim in dims]
    offsets = [take_extents(dim) if box else () for dim, box in zip(dims, partial)]
    fulls = [take_extents(dim) if box else () for dim, box in zip(dims, partial)]
    return Index(
        tuple(
            Piece(parse_spec(names[name[n]], kinds[kind[n]], shapes[n], offsets[n], fulls[n]), number[n], begin[n])
            for n in range(count)
        )
    )
