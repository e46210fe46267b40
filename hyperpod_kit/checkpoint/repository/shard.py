"""A shard is a safetensors file whose last tensor holds its digests.

    8 bytes        length of the header, little endian
    header         JSON, padded with spaces so that the data begins at a multiple of 4096
    tensors        without gaps: first those whose size is a multiple of 4096, then of 64, then by item size,
                   so every tensor is aligned to its items and every large one to a page
    leaves         `__hpk__.digests.RRRRR`, U8: one leaf per chunk of everything before it

The layout depends on names, types and shapes only: it is computed once, and a save patches three fixed-width numbers.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from hyperpod_kit.errors import CheckpointError

from . import digest, layout

ALIGN = 4096
RESERVED = "__hpk__."
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2,
              "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8}
_NUMBERS = ("epoch", "seq", "step")
_WIDTH = 20


class TensorSpec(NamedTuple):
    """A tensor as the file sees it: safetensors' name of the type, shape in items."""

    name: str
    dtype: str
    shape: Tuple[int, ...]

    @property
    def nbytes(self) -> int:
        count = ITEM_BYTES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count


class Placed(NamedTuple):
    """A tensor and where its bytes lie in the file: [begin, end)."""

    spec: TensorSpec
    begin: int
    end: int


class ShardLayout(NamedTuple):
    """Where everything lies in one rank's file. `size` includes the leaves, `data_end` does not."""

    head: bytes
    number_at: Dict[str, int]
    tensors: Tuple[Placed, ...]
    data_end: int
    size: int

    def header(self, epoch: int, seq: int, step: int) -> bytes:
        """The file's first bytes for this save; always of the same length."""
        head = bytearray(self.head)
        for name, value in zip(_NUMBERS, (epoch, seq, step)):
            at = self.number_at[name]
            head[at:at + _WIDTH] = b"%0*d" % (_WIDTH, value)
        return bytes(head)

    @property
    def fingerprint(self) -> str:
        """Two layouts with the same fingerprint hold the same tensors at the same places."""
        return digest.small(self.head)


def digests_name(rank: int) -> str:
    return f"{RESERVED}digests.{rank:05d}"


def _order(spec: TensorSpec) -> Tuple[int, int, str]:
    if spec.nbytes % ALIGN == 0:
        return (0, 0, spec.name)
    if spec.nbytes % 64 == 0:
        return (1, 0, spec.name)
    return (2, -ITEM_BYTES[spec.dtype], spec.name)


def lay_out(specs: Sequence[TensorSpec], *, rank: int, world: int, run: str, plan: str,
            algorithm: str = digest.DEFAULT, chunk: int = digest.CHUNK) -> ShardLayout:
    """Lay out one rank's file. `run` is the run's id, `plan` the fingerprint that all ranks share.

    Raises CheckpointError when a name is taken twice or reserved.
    """
    ordered = sorted(specs, key=_order)
    names = [spec.name for spec in ordered]
    if len(set(names)) != len(names) or any(n.startswith(RESERVED) or n == "__metadata__" for n in names):
        raise CheckpointError("a tensor's name is taken twice or reserved: " + ", ".join(names[:8]))
    places: List[Tuple[TensorSpec, int, int]] = []
    at = 0
    for spec in ordered:
        places.append((spec, at, at + spec.nbytes))
        at += spec.nbytes
    ours = {"format": layout.FORMAT, "run": run, "rank": rank, "world": world, "plan": plan, "digest": algorithm,
            "chunk": chunk, **{name: "#" * _WIDTH for name in _NUMBERS}}
    sharding = {spec.name: {"saved_offsets": [0] * len(spec.shape)} for spec in ordered}
    sharding[digests_name(rank)] = {"saved_offsets": [0]}
    count = digest.leaf_count(ALIGN + at, chunk)
    while True:  # the number of leaves depends on the header's length and the other way round
        header: Dict[str, Any] = {"__metadata__": {
            "DCP_SHARDING_INFO": json.dumps(sharding), "DCP_VERSION": "1.0", "format": "pt",
            "hpk": json.dumps(ours, sort_keys=True)}}
        for spec, begin, end in places:
            header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [begin, end]}
        tail = count * digest.LEAF_BYTES
        header[digests_name(rank)] = {"dtype": "U8", "shape": [tail], "data_offsets": [at, at + tail]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGN)
        base = 8 + len(text)
        needed = digest.leaf_count(base + at, chunk)
        if needed == count:
            break
        count = needed
    head = struct.pack("<Q", len(text)) + text
    # `hpk` is JSON inside a JSON string: its quotes are escaped, the digits are not.
    number_at = {}
    for name in _NUMBERS:
        before = b'\\"%s\\": \\"' % name.encode()
        number_at[name] = head.index(before + b"#" * _WIDTH) + len(before)
    return ShardLayout(head, number_at, tuple(Placed(s, base + b, base + e) for s, b, e in places),
                       base + at, base + at + tail)


class Parsed(NamedTuple):
    """A shard's header: its tensors (without the digests) and our metadata."""

    tensors: Tuple[Placed, ...]
    meta: Dict[str, Any]


def parse(view: memoryview) -> Parsed:
    """Parse the header of a whole file that lies in `view`. Raises CheckpointError when it is not a shard."""
    try:
        (length,) = struct.unpack("<Q", view[:8])
        base = 8 + length
        if base > len(view) or base % ALIGN:
            raise ValueError(f"header of {length} bytes in a file of {len(view)}")
        header = json.loads(bytes(view[8:base]).decode())
        meta = json.loads(header.pop("__metadata__")["hpk"])
        found = []
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            spec = TensorSpec(name, entry["dtype"], tuple(entry["shape"]))
            if not 0 <= begin <= end <= len(view) - base or end - begin != spec.nbytes:
                raise ValueError(f"{name} lies at {begin}..{end}")
            if not name.startswith(RESERVED):
                found.append(Placed(spec, base + begin, base + end))
        return Parsed(tuple(found), meta)
    except (ValueError, KeyError, TypeError, struct.error) as err:
        raise CheckpointError(f"not a shard: {err}") from None
