"""A shard is a safetensors file whose last tensor holds its digests.

    8 bytes        length of the header, little endian
    header         JSON, padded with spaces so that the data begins at a multiple of 4096
    tensors        without gaps: first those whose size is a multiple of 4096, then of 64, then by item size,
                   so every tensor is aligned to its items and every large one to a page
    own tree       `__hpk__.tree.RRRRR`, U8, where the rank has one: see rank_extra_state
    leaves         `__hpk__.digests.RRRRR`, U8: one leaf per chunk of everything before it

The layout depends on names, types and shapes only: it is computed once, and a save patches three fixed-width numbers.

A shard holds at most one piece of a tensor: all of it, or a box of a larger one. `DCP_SHARDING_INFO` says where the box
begins, as torch's HuggingFaceStorageReader expects it; our metadata adds what safetensors has no words for: `full`, the
shape of the larger tensor, and `dtypes`, type and shape of tensors that safetensors can only hold as bytes.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.format import digest, layout
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.parse import parse_json_object

ALIGN = 4096
RESERVED = "__hpk__."
_TREES = f"{RESERVED}tree."
# What every reader of safetensors knows; everything else is stored as bytes (U8).
NATIVE = frozenset(
    {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
)
ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0FNU": 1,
    "C32": 4,
    "C64": 8,
    "C128": 16,
}
MOST_DIMENSIONS = 64
"""torch's own limit."""
_LARGEST = (1 << 63) - 1
_MOST_NUMBERS = 1 << 58
"""Of a tensor: its bytes are counted in 63 bits, whatever the type."""

_NUMBERS = ("epoch", "seq", "step")
_WIDTH = 20
# As `lay_out` writes them: `hpk` is JSON inside a JSON string.
_OWN_NUMBERS = re.compile(rb'(\\"(?:epoch|seq|step)\\": \\")[0-9]{20}')


class TensorSpec(NamedTuple):
    """A tensor, or a box of a larger one: name of the type, extents in items.

    `offsets` and `full` are empty for a whole tensor; else the box begins at `offsets` in a tensor of shape `full`.
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    offsets: Tuple[int, ...] = ()
    full: Tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        count = ITEM_BYTES[self.dtype]
        for extent in self.shape:
            count *= extent
        return count

    @property
    def full_shape(self) -> Tuple[int, ...]:
        """The shape of the tensor that this is a piece of."""
        return self.full or self.shape

    @property
    def is_at_origin(self) -> bool:
        """Whether this piece begins at the tensor's origin: true of exactly one piece of each tensor."""
        return not any(self.offsets)

    def as_safetensors(self) -> Tuple[str, List[int], List[int]]:
        """Return (type, shape, offsets) as safetensors sees them."""
        offsets = list(self.offsets) or [0] * len(self.shape)
        if self.dtype in NATIVE:
            return self.dtype, list(self.shape), offsets
        item = ITEM_BYTES[self.dtype]
        if not self.shape:
            return "U8", [item], [0]
        return "U8", [*self.shape[:-1], self.shape[-1] * item], [*offsets[:-1], offsets[-1] * item]


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
    tree: Tuple[int, int]
    """The room of the rank's own tree, [begin, end) of the file; empty where it has none."""
    fingerprint: str
    """Two layouts with the same fingerprint hold the same tensors at the same places."""

    def header(self, epoch: int, seq: int, step: int) -> bytes:
        """Return the file's first bytes for this save; always of the same length."""
        head = bytearray(self.head)
        for name, value in zip(_NUMBERS, (epoch, seq, step)):
            at = self.number_at[name]
            head[at : at + _WIDTH] = b"%0*d" % (_WIDTH, value)
        return bytes(head)


def digests_tensor_name(rank: int) -> str:
    return f"{RESERVED}digests.{rank:05d}"


def rank_tree_tensor_name(rank: int) -> str:
    return f"{_TREES}{rank:05d}"


def _layout_sort_key(spec: TensorSpec) -> Tuple[int, int, str]:
    size = spec.nbytes
    if size % ALIGN == 0:
        return (0, 0, spec.name)
    if size % 64 == 0:
        return (1, 0, spec.name)
    return (2, -ITEM_BYTES[spec.dtype], spec.name)


def _header_entry(name: str, dtype: str, shape: List[int], begin: int, end: int) -> str:
    """Return a tensor's member of the header, as `json.dumps` writes it without spaces."""
    extents = ",".join(map(str, shape))
    return f'{json.dumps(name)}:{{"dtype":"{dtype}","shape":[{extents}],"data_offsets":[{begin},{end}]}}'


def _sharding_entry(name: str, offsets: List[int]) -> str:
    """Return a tensor's member of `DCP_SHARDING_INFO`, as `json.dumps` writes it."""
    return f'{json.dumps(name)}: {{"saved_offsets": {offsets}}}'


def lay_out(
    specs: Sequence[TensorSpec],
    *,
    rank: int,
    world: int,
    run_id: str,
    plan: str,
    algorithm: str = digest.DEFAULT,
    chunk: int = digest.CHUNK,
    tree_bytes: int = 0,
) -> ShardLayout:
    """Lay out one rank's file. `run_id` is the run's id, `plan` the fingerprint that all ranks share;
    `tree_bytes`: room for the rank's extra state.

    Raise CheckpointError when a name is taken twice or reserved.
    """
    ordered = sorted(specs, key=_layout_sort_key)
    names = [spec.name for spec in ordered]
    if len(set(names)) != len(names) or any(n.startswith(RESERVED) or n == "__metadata__" for n in names):
        raise CheckpointError("a tensor's name is taken twice or reserved: " + ", ".join(names[:8]))
    edges = [0]
    entries: List[str] = []
    sharding: List[str] = []
    # Each entry is written as text at once: with thousands of tensors a dict for each would set off the collector.
    for spec in ordered:
        begin, end = edges[-1], edges[-1] + spec.nbytes
        edges.append(end)
        dtype, shape, offsets = spec.as_safetensors()
        entries.append(_header_entry(spec.name, dtype, shape, begin, end))
        sharding.append(_sharding_entry(spec.name, offsets))
    tree_at, at = edges[-1], edges[-1] + tree_bytes
    metadata = {
        "format": layout.FORMAT,
        "run": run_id,
        "rank": rank,
        "world": world,
        "plan": plan,
        "digest": algorithm,
        "chunk": chunk,
        **{name: "#" * _WIDTH for name in _NUMBERS},
        "full": {spec.name: list(spec.full) for spec in ordered if spec.full},
        "dtypes": {spec.name: [spec.dtype, list(spec.shape)] for spec in ordered if spec.dtype not in NATIVE},
    }
    if tree_bytes:
        entries.append(_header_entry(rank_tree_tensor_name(rank), "U8", [tree_bytes], tree_at, at))
        sharding.append(_sharding_entry(rank_tree_tensor_name(rank), [0]))
    sharding.append(_sharding_entry(digests_tensor_name(rank), [0]))
    file_metadata = {
        "DCP_SHARDING_INFO": f"{{{', '.join(sharding)}}}",
        "DCP_VERSION": "1.0",
        "format": "pt",
        "hpk": json.dumps(metadata, sort_keys=True),
    }
    entries.insert(0, f'"__metadata__":{json.dumps(file_metadata, separators=(",", ":"))}')
    count = digest.leaf_count(ALIGN + at, chunk)
    while True:  # the number of leaves depends on the header's length and the other way round
        tail = count * digest.LEAF_BYTES
        digests = _header_entry(digests_tensor_name(rank), "U8", [tail], at, at + tail)
        text = f"{{{','.join([*entries, digests])}}}".encode()
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
    return ShardLayout(
        head,
        number_at,
        tuple(Placed(spec, base + begin, base + end) for spec, begin, end in zip(ordered, edges, edges[1:])),
        base + at,
        base + at + tail,
        (base + tree_at, base + at),
        digest.small_object_digest(head),
    )


class Parsed(NamedTuple):
    """A shard's header: its tensors (without those of ours), our metadata, and where the rank's own tree has its room,
    [begin, end) of the file."""

    tensors: Tuple[Placed, ...]
    meta: Dict[str, Any]
    tree: Optional[Tuple[int, int]] = None


def parse(view: memoryview, size: Optional[int] = None) -> Parsed:
    """Parse the header at the beginning of `view`. Raises CheckpointError when it is not a shard.

    `size` is the file's size in bytes when `view` holds only its beginning; see `head_size`.
    """
    try:
        if size is None:
            size = len(view)
        base = head_size(view)
        if base > min(size, len(view)) or base % ALIGN:
            raise ValueError(f"header of {base} bytes in a file of {size}")
        header = parse_json_object(bytes(view[8:base]), base)
        metadata = header.pop("__metadata__")
        meta = parse_json_object(metadata["hpk"], base)
        boxes = parse_json_object(metadata["DCP_SHARDING_INFO"], base)
        tensors = []
        tree = None
        for name, entry in header.items():
            if name.startswith(_TREES):
                begin, end = parse_range(*entry["data_offsets"])
                if end > size - base or tree is not None:
                    raise ValueError(f"{name} lies at {begin}..{end}")
                tree = base + begin, base + end
            if name.startswith(RESERVED):
                continue
            begin, end = entry["data_offsets"]
            dtype, shape = meta["dtypes"].get(name, (entry["dtype"], entry["shape"]))
            full = meta["full"].get(name, ())
            spec = parse_spec(
                name,
                dtype,
                shape,
                _item_offsets_from_safetensors(dtype, boxes[name]["saved_offsets"]) if full else (),
                full,
            )
            begin, end = parse_range(begin, end)
            if end > size - base or end - begin != spec.nbytes:
                raise ValueError(f"{name} lies at {begin}..{end}")
            tensors.append(Placed(spec, base + begin, base + end))
        return Parsed(tuple(tensors), meta, tree)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as err:
        raise CheckpointError(f"not a shard: {err}") from None


class Parser:
    """The headers of one rank's shards, save after save: one that differs from the last one in the save's own numbers
    only is not parsed again."""

    def __init__(self) -> None:
        self._last: Tuple[int, bytes, Parsed] = (0, b"", Parsed((), {}))

    def parse_or_reuse_last(self, view: memoryview) -> Parsed:
        """Parse the header of a whole shard; the numbers of the save in it may be those of the last one. Raise
        CheckpointError when it is none."""
        head = _OWN_NUMBERS.sub(rb"\1", bytes(view[: head_size(view)]))
        if self._last[:2] != (len(view), head):
            self._last = (len(view), head, parse(view))
        return self._last[2]


def head_size(view: memoryview) -> int:
    """Return the bytes of length and header, from a file's first 8 bytes; the tensors begin there."""
    (length,) = struct.unpack("<Q", view[:8])
    return 8 + int(length)


def parse_spec(name: Any, dtype: Any, shape: Any, offsets: Any, full: Any) -> TensorSpec:
    """Build a TensorSpec from JSON. Raise ValueError, TypeError for what can be none."""
    if not isinstance(name, str) or not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ValueError(f"a tensor is named {str(name)[:80]!r} and of type {str(dtype)[:80]!r}")
    spec = TensorSpec(name, dtype, tuple(shape), tuple(offsets), tuple(full))
    extents = (*spec.shape, *spec.offsets, *spec.full)
    if len(extents) > 3 * MOST_DIMENSIONS:
        raise ValueError(f"{name[:80]} has extents that it cannot have")
    for number in extents:  # a plain loop: of thousands of ranks a commit reads six each
        if type(number) is not int or not 0 <= number <= _LARGEST:
            raise ValueError(f"{name[:80]} has extents that it cannot have")
    if spec.full and not len(spec.shape) == len(spec.offsets) == len(spec.full):
        raise ValueError(f"{name[:80]} has a box of other dimensions than its own")
    if 0 not in spec.shape:
        # Where an empty box lies, nothing is read or written; torch has put such ones behind the end.
        for at, extent, full in zip(spec.offsets, spec.shape, spec.full):
            if at + extent > full:
                raise ValueError(f"{name[:80]} has a box that does not lie in it")
    if not _is_within_item_limit(spec.full_shape):
        raise ValueError(f"{name[:80]} has more numbers than there can be")
    return spec


def _is_within_item_limit(extents: Tuple[int, ...]) -> bool:
    """Return whether a tensor of these extents has so few items that its bytes can be counted; an extent of 0
    counts as 1."""
    count = 1
    for extent in extents:
        count *= extent or 1
    return count <= _MOST_NUMBERS


def parse_range(begin: Any, end: Any) -> Tuple[int, int]:
    """Return the range in which a tensor lies, from JSON. Raise ValueError."""
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < 1 << 63:
        raise ValueError(f"a tensor lies at {str(begin)[:80]}..{str(end)[:80]}")
    return begin, end


def _item_offsets_from_safetensors(dtype: str, stored: List[int]) -> Tuple[int, ...]:
    if dtype in NATIVE:
        return tuple(stored)
    return (*stored[:-1], stored[-1] // ITEM_BYTES[dtype])
