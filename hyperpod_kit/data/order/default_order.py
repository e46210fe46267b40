"""The order that a loader takes where none is given, and the one in which a position was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hyperpod_kit.data.order.block_group import MAX_TABLE_SAMPLES
from hyperpod_kit.data.order.order import ShuffledOrder
from hyperpod_kit.data.order.spread_order import LANES, SpreadOrder
from hyperpod_kit.data.reading.coalesced_reads import SHORT_SAMPLE_BYTES

BLOCK_BYTES = 256 << 10
"""Bytes of a block: of 384 that are read side by side the pieces of one process fit into its memory, see
coalesced_reads.py."""

_LONG_SAMPLE_BLOCK_BYTES = 640 << 10
"""Of longer ones, which are in memory as parts of objects alone: 384 of them fit there. A request of S3 costs as much
processor time for a small block as for a large one."""

_KINDS = {"shuffled": ShuffledOrder, "spread": SpreadOrder}
_UNIT_FORMATS = {"gzip", "zstd", "parquet"}
"""Formats of which more than a sample is read, and kept, for a sample: a member, or a row group, for each lane."""
_LANES_BY_MEMORY = (LANES, 288, 240, 192, 144, 96, 72, 48, 36, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""Numbers that many numbers of ranks divide."""
_DEFAULT_BLOCK_SAMPLES = 1024
"""Of a block, where nothing says how large they are."""


class RowGroups(NamedTuple):
    """Parquet's row groups: rows of one, its bytes when decoded, and how many bytes of them a process keeps."""

    rows: int
    bytes: int
    memory: int


def order_of(dataset: Any, seed: int = 0) -> ShuffledOrder:
    """Choose the shuffled order that fits a data set; a loader without `order` takes it.

    Of Parquet the footer of one file is read, and a block is a row group; otherwise the size of a block follows from
    the size of the samples.

    Args:
        dataset: A data set with a length: an IndexedDataset, MegatronTokens, or any other.
        seed: Another seed gives another order. Default: 0.

    Returns:
        The order: a `SpreadOrder`; for compressed files, and Parquet without a readable footer, a `ShuffledOrder`.

    Raises:
        DataUnavailable: The file cannot be read for now, and everything was tried.
        OSError: The file cannot be read.

    Example:
        With a `dataset`:

            from hyperpod_kit.data import ElasticLoader, order_of

            loader = ElasticLoader(dataset, batch_size=4, order=order_of(dataset, seed=1))
    """
    # A list has a method of the name `index`.
    index = getattr(dataset, "index", None)
    if not hasattr(index, "block_for"):
        index = None
    of_parquet = getattr(dataset, "row_groups", None)
    groups: RowGroups | None = None
    if of_parquet is not None:
        groups = of_parquet()
    if index is None or groups is None or not groups.rows or len(dataset) != len(index):
        return choose_shuffled_order(index, seed, len(dataset))
    return _order_by_row_groups(index, seed, groups)


def choose_shuffled_order(index: Any, seed: int, samples: int | None = None) -> ShuffledOrder:
    """Choose the shuffled order for an index, or for so many samples of which nothing else is known."""
    if samples is None:
        samples = len(index)
    if set(getattr(index, "formats", ())) & _UNIT_FORMATS:
        return ShuffledOrder(samples, seed, index.block_for())
    about = min(_samples_per_block(index), MAX_TABLE_SAMPLES // LANES)
    # No more samples of a block than let the groups come out even: the last one would have few lanes otherwise.
    groups = -(-samples // (LANES * about))
    return SpreadOrder(samples, seed, max(1, -(-samples // (LANES * groups))))


def _samples_per_block(index: Any) -> int:
    if index is None:
        return _DEFAULT_BLOCK_SAMPLES
    mean = max(1, index.bytes // max(1, len(index)))
    block_bytes = BLOCK_BYTES if mean <= SHORT_SAMPLE_BYTES else _LONG_SAMPLE_BLOCK_BYTES
    return int(max(1, block_bytes // mean))


def _order_by_row_groups(index: Any, seed: int, groups: RowGroups) -> ShuffledOrder:
    """Make an order with a row group per block, as many side by side as are kept: one that is thrown away is decoded
    again for the next batch."""
    rest = index.samples_of_files()[:-1] % groups.rows
    of_block = 2 if rest.any() else 1  # a block ends in the row group that the next one begins in
    fit = max(1, groups.memory // max(1, groups.bytes * of_block))
    lanes = next(number for number in _LANES_BY_MEMORY if number <= fit)
    return SpreadOrder(len(index), seed, groups.rows, lanes)


def rebuild_saved_order(state: Mapping[str, Any], current_order: Any) -> Any:
    """Return the order of a saved position, with the samples and the seed of `current_order`.

    Return `current_order` where the state describes no shuffled order or `current_order` is none. For a default
    order: each release may have another default, and a training continues in the one that it began with.
    """
    kind = _KINDS.get(str(state.get("order")))
    block, lanes = state.get("block"), state.get("lanes")
    if (
        kind is None
        or not isinstance(current_order, ShuffledOrder)
        or not (_is_positive_int(block) and _is_positive_int(lanes))
    ):
        return current_order
    saved_order = kind(current_order.samples, current_order.seed, block, lanes)  # type: ignore[arg-type]
    if saved_order == current_order:
        return current_order
    return saved_order


def render_order_argument(state: Mapping[str, Any]) -> str:
    """Return, as code, the argument that gives a loader the order of a saved position."""
    kind = _KINDS.get(str(state.get("order")))
    seed, block, lanes = (state.get(name) for name in ("seed", "block", "lanes"))
    if kind is None or not (_is_positive_int(block) and _is_positive_int(lanes)) or type(seed) is not int:
        return "of the same kind, seed, block and lanes"
    of_packed = ", of its PackedDataset" if "window" in state else ""
    return f"order={kind.__name__}(len(data), {seed}, block={block}, lanes={lanes}){of_packed}"


def _is_positive_int(value: object) -> bool:
    return type(value) is int and value > 0
