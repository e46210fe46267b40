"""An attempt without a manifest that counts: whether a checkpoint could be made of what lies there, and whose it is.

Judged by listing, headers and the digests at the end of each shard, which are written last: no tensor is read. A shard
says itself which run wrote it, and how many belong together.
"""

from __future__ import annotations

import enum
from typing import Any, Dict, List, NamedTuple, Optional

from hyperpod_kit.checkpoint.repository.format import layout, shard
from hyperpod_kit.checkpoint.repository.store.base import Store, StoreReader
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.parse import parse_json_object

_LARGEST_HEADER = 1 << 28
_MOST_DIGESTS = 64 << 20
"""Bytes of digests that are looked at: those of a shard of 64 TiB. A file of holes may say any number."""
_PIECE = 1 << 20
_TRIED = 8


class Leftover(enum.Enum):
    """What lies there."""

    PARTIAL = "not all of its shards exist and are complete"
    COMPLETE = "all of its shards exist and are complete"
    FOREIGN = "its shards belong to another run"


class _Header(NamedTuple):
    """What a shard says: its run, how many shards belong together, and where its digests lie, [begin, end)."""

    run_id: str
    world: int
    begin: int
    end: int


def classify_leftover(store: Store, checkpoint_id: str, run_id: str) -> Leftover:
    """Classify what lies in `checkpoint_id`: FOREIGN when its shards are of another run than `run_id`, however
    many there are, else COMPLETE or PARTIAL. `run_id` "": of any run. Raise OSError."""
    sizes = store.sizes(checkpoint_id)
    shards = sorted(name for name in sizes if name.endswith(".safetensors") and layout.is_kit_checkpoint_file(name))
    first = _first_readable_shard_header(store, checkpoint_id, shards)
    if first is None:
        return Leftover.PARTIAL
    if run_id not in ("", first.run_id):
        return Leftover.FOREIGN
    if first.world <= len(shards):
        names = [layout.shard_file(rank) for rank in range(first.world)]
    else:
        names = []
    if not names or any(name not in sizes for name in names):
        return Leftover.PARTIAL
    is_complete = all(
        _has_full_size_and_nonzero_digests(store, checkpoint_id, name, rank, sizes) for rank, name in enumerate(names)
    )
    if is_complete:
        return Leftover.COMPLETE
    return Leftover.PARTIAL


def _first_readable_shard_header(store: Store, checkpoint_id: str, shards: List[str]) -> Optional[_Header]:
    """The header of one that has one."""
    for name in shards[:_TRIED]:
        header = _read_shard_header(store, f"{checkpoint_id}/{name}")
        if header is not None:
            return header
    return None


def _read_shard_header(store: Store, name: str) -> Optional[_Header]:
    """Return the header of a shard file; None for what is no shard. Raise OSError."""
    try:
        reader = store.open_read(name)
    except (CheckpointError, FileNotFoundError):
        return None
    try:
        size = shard.head_size(memoryview(_read_exactly(reader, 0, 8)))
        if not 8 < size <= min(reader.size, _LARGEST_HEADER):
            return None
        header: Dict[str, Any] = parse_json_object(_read_exactly(reader, 8, size), size)
        meta = parse_json_object(header["__metadata__"]["hpk"], size)
        begin, end = header[shard.digests_tensor_name(int(meta["rank"]))]["data_offsets"]
        return _Header(str(meta["run"]), int(meta["world"]), size + int(begin), size + int(end))
    except (CheckpointError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, EOFError):
        return None
    finally:
        reader.close()


def _has_full_size_and_nonzero_digests(
    store: Store, checkpoint_id: str, name: str, rank: int, sizes: Dict[str, int]
) -> bool:
    """Whether a shard has its size and its digests. A file that was reserved and not filled has zeros there."""
    header = _read_shard_header(store, f"{checkpoint_id}/{name}")
    if header is None or header.end != sizes[name] or header.begin >= header.end:
        return False
    reader = store.open_read(f"{checkpoint_id}/{name}")
    try:
        until = min(header.end, header.begin + _MOST_DIGESTS)
        return any(
            any(_read_exactly(reader, begin, min(begin + _PIECE, until)))
            for begin in range(header.begin, until, _PIECE)
        )
    except EOFError:
        return False
    finally:
        reader.close()


def _read_exactly(reader: StoreReader, begin: int, end: int) -> bytes:
    """Read the bytes [begin, end). Raise EOFError where the object ends before, OSError."""
    data = bytearray(end - begin)
    done = 0
    while done < len(data):
        count = reader.read_into(memoryview(data)[done:], begin + done)
        if count <= 0:
            raise EOFError
        done += count
    return bytes(data)
