"""Tensors of a model that a function makes of some in a checkpoint, made before anything of the model is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import sharding, weight_sources
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dtypes import TYPES
from hyperpod_kit.checkpoint.loading import load_state
from hyperpod_kit.checkpoint.repository.shard import ITEM_BYTES
from hyperpod_kit.checkpoint.state_dict import StateDict
from hyperpod_kit.checkpoint.weight_sources import ConvertedFrom, SavedTensor
from hyperpod_kit.errors import CheckpointError

_BATCH_BYTES = 1 << 30
"""Bytes of whole tensors of the checkpoint that are held at the same time."""


def read_convert_and_list_misfits(
    root: str,
    checkpoint_id: str,
    live: Mapping[str, torch.Tensor],
    saved: Mapping[str, SavedTensor],
    conversions: Mapping[str, ConvertedFrom],
    group: dist.ProcessGroup | None,
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Read the checkpoint's tensors that `conversions` need, apply the functions and return this
    rank's part of each result by the model's names, and the names whose result is of another shape
    or kind.

    A collective. Raises as `load_state`, CheckpointError on all ranks when a function raises on
    one.
    """
    ranks = Ranks(group)
    parts: dict[str, torch.Tensor] = {}
    misfits: list[str] = []
    for names in _batches(conversions, saved):
        full_tensors = _read_full_tensors(
            root, checkpoint_id, [saved[name] for here in names for name in conversions[here].names], group
        )
        failure: str | None = None
        for here in names:
            source = conversions[here]
            result = _apply_conversion(here, source, [full_tensors[saved[name].stored] for name in source.names])
            if isinstance(result, str):
                failure = failure or result
            elif not _has_same_shape_and_convertible_dtype(result, live[here]):
                misfits.append(here)
            else:
                parts[here] = _copy_local_part(here, live[here], result, ranks)
        for rank_failure in ranks.gather(failure):
            if rank_failure is not None:
                raise CheckpointError(f"{checkpoint_id}: {rank_failure}")
    return parts, misfits


def nest_by_path(values: list[tuple[list[Any], torch.Tensor]]) -> dict[str, Any]:
    """Return a tree of dicts with each tensor at the end of its path."""
    tree: dict[str, Any] = {}
    for path, tensor in values:
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = tensor
    return tree


def _batches(conversions: Mapping[str, ConvertedFrom], saved: Mapping[str, SavedTensor]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for here, source in conversions.items():
        batch.append(here)
        size += sum(_nbytes(saved[name]) for name in source.names)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _nbytes(saved: SavedTensor) -> int:
    size = ITEM_BYTES[saved.dtype]
    for extent in saved.shape:
        size *= extent
    return size


def _read_full_tensors(
    root: str, checkpoint_id: str, sources: Iterable[SavedTensor], group: dist.ProcessGroup | None
) -> dict[str, torch.Tensor]:
    """Read whole tensors into host memory and return them by stored name: tied ones are read once.
    Raises as `load_state`."""
    paths = {source.stored: source for source in sources}
    full_tensors = {
        stored: torch.empty(source.shape, dtype=TYPES[source.dtype], device="cpu") for stored, source in paths.items()
    }
    by_path = [(source.path, full_tensors[stored]) for stored, source in paths.items()]
    load_state(root, StateDict(nest_by_path(by_path)), checkpoint_id=checkpoint_id, process_group=group)
    return full_tensors


def _apply_conversion(name: str, source: ConvertedFrom, full_tensors: Sequence[torch.Tensor]) -> torch.Tensor | str:
    """Apply the conversion of `name` and return its tensor, or the reason why it made none: a rank
    that raised here would leave the others waiting."""
    try:
        with torch.no_grad():
            result = source.by(*full_tensors)
    except Exception as err:
        return f"{name} cannot be made of {list(source.names)}: {type(err).__name__}: {err}"
    if not isinstance(result, torch.Tensor):
        return f"{name} is made of {list(source.names)}: a {type(result).__name__}, expected a tensor"
    return result


def _has_same_shape_and_convertible_dtype(result: torch.Tensor, live: torch.Tensor) -> bool:
    return result.shape == live.shape and weight_sources.are_convertible_dtypes(live.dtype, result.dtype)


def _copy_local_part(name: str, live: torch.Tensor, full_tensor: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Return a copy of the part of `full_tensor` that this rank holds."""
    if not sharding.is_sharded(live):
        return full_tensor.clone()
    local_part = sharding.locate_local_part(
        name, live, ranks, per_rank=False, full=sharding.Full(is_requested=False, gather=False)
    )
    if local_part is None:
        return full_tensor.new_empty(sharding.local(live).shape)
    part = full_tensor
    for dim, begin in enumerate(local_part.offsets):
        part = part.narrow(dim, begin, local_part.local.shape[dim])
    return part.clone()
