"""Whole tensors of a committed checkpoint, read and proved by one process alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from hyperpod_kit.checkpoint.dcp import reshard, sharing
from hyperpod_kit.checkpoint.dcp.slices import SliceRequests, TensorSlice
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Verdict
from hyperpod_kit.checkpoint.repository.format.rows import Rows
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.checkpoint.transfer.load import allocate_host_tensor
from hyperpod_kit.errors import CheckpointError, StorageUnreadable

TensorAllocator = Callable[[Mapping[str, TensorSpec]], Mapping[str, torch.Tensor]]
"""Makes the tensors that are filled, each of its type and whole shape and contiguous."""
_BATCH_BYTES = 256 << 20
"""Bytes of tensors between two rests: what was read to be cut is held until then."""


def read_full_tensors_alone(
    checkpoint: reshard.OpenCheckpoint,
    rows: Rows,
    names: Iterable[str],
    allocate: TensorAllocator | None = None,
    on_read: Callable[[int], None] = lambda _: None,
) -> dict[str, torch.Tensor]:
    """Read and prove whole tensors of a checkpoint and return them by name; `on_read` is called with
    the bytes of each batch.

    Raises StorageUnreadable, DigestUnavailable, CheckpointError for what is not as it was written
    and for a name that is in no shard.
    """
    specs: dict[str, TensorSpec] = {}
    for name in sorted(names):
        pieces = rows.get(name)
        if not pieces:
            raise CheckpointError(f"{name} is in no shard")
        specs[name] = TensorSpec(name, pieces[0].spec.dtype, tuple(pieces[0].spec.full_shape))
    tensors: dict[str, torch.Tensor] = {}
    if allocate is not None:
        tensors.update(allocate(specs))
    else:
        tensors.update((name, allocate_host_tensor(spec)) for name, spec in specs.items())
    for part in _batches(rows, specs):
        requests = SliceRequests(rows)
        for name in part:
            full_shape = specs[name].shape
            requests.add(TensorSlice(name, (0,) * len(full_shape), full_shape), tensors[name])
        fill_requested_slices_alone(checkpoint, requests)
        on_read(sum(specs[name].nbytes for name in part))
    return tensors


def fill_requested_slices_alone(checkpoint: reshard.OpenCheckpoint, requests: SliceRequests) -> None:
    """Read and prove the requested slices and fill their targets. Raises as `read`."""
    ranks = Ranks(alone=True)
    work = sharing.freeze_requests_and_assign_readers(ranks, requests, checkpoint.manifest.chunk)
    problem = reshard.read_and_distribute(ranks, checkpoint, work, requests)
    if problem is not None and problem.verdict is Verdict.UNREAD:
        raise StorageUnreadable(
            checkpoint.name,
            problem.text,
            hint=f"choose an older checkpoint: hyperpod-kit checkpoint ls {checkpoint.store.url}",
        )
    if problem is not None:
        raise CheckpointError(problem.text)


def _batches(rows: Rows, specs: Mapping[str, TensorSpec]) -> Iterator[list[str]]:
    """Yield the names in the order in which they lie in the shards, in groups of about _BATCH_BYTES."""
    part: list[str] = []
    size = 0
    for name in sorted(specs, key=lambda name: (rows[name][0].shard, rows[name][0].begin)):
        part.append(name)
        size += specs[name].nbytes
        if size >= _BATCH_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
