"""Whole tensors of a committed checkpoint, read and proved by one process alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp import reshard, sharing
from hyperpod_kit.checkpoint.dcp.slices import SliceRequests, TensorSlice
from hyperpod_kit.checkpoint.load import empty
from hyperpod_kit.checkpoint.reason import Verdict
from hyperpod_kit.checkpoint.repository.rows import Rows
from hyperpod_kit.checkpoint.repository.shard import TensorSpec
from hyperpod_kit.errors import CheckpointError, StorageUnreadable

Room = Callable[[Mapping[str, TensorSpec]], Mapping[str, torch.Tensor]]
"""Makes the tensors that are filled, each of its type and whole shape and contiguous."""
_AT_A_TIME = 256 << 20
"""Bytes of tensors between two rests: what was read to be cut is held until then."""


def read(
    opened: reshard.Attempt,
    rows: Rows,
    names: Iterable[str],
    room: Room | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> dict[str, torch.Tensor]:
    """By their names; `told` hears of bytes as they are read and proved. Raises StorageUnreadable, DigestUnavailable,
    CheckpointError for what is not as it was written and for a name that is in no shard."""
    specs: dict[str, TensorSpec] = {}
    for name in sorted(names):
        found = rows.get(name)
        if not found:
            raise CheckpointError(f"{name} is in no shard")
        specs[name] = TensorSpec(name, found[0].spec.dtype, tuple(found[0].spec.full_shape))
    tensors = dict(room(specs) if room is not None else {name: empty(spec) for name, spec in specs.items()})
    for part in _parts(rows, specs):
        requests = SliceRequests(rows)
        for name in part:
            whole = specs[name].shape
            requests.add(TensorSlice(name, (0,) * len(whole), whole), tensors[name])
        fill(opened, requests)
        told(sum(specs[name].nbytes for name in part))
    return tensors


def fill(opened: reshard.Attempt, requests: SliceRequests) -> None:
    """Read and prove what was asked for. Raises as `read`."""
    ranks = Ranks(alone=True)
    work = sharing.work_of(ranks, requests, opened.manifest.chunk)
    problem = reshard.carry_out(ranks, opened, work, requests)
    if problem is not None and problem.verdict is Verdict.UNREAD:
        raise StorageUnreadable(
            opened.name,
            problem.words,
            hint=f"name an older one: hyperpod-kit checkpoint ls {opened.store.url}",
        )
    if problem is not None:
        raise CheckpointError(problem.words)


def _parts(rows: Rows, specs: Mapping[str, TensorSpec]) -> Iterator[list[str]]:
    """The names in the order in which they lie, some of them at a time."""
    part: list[str] = []
    size = 0
    for name in sorted(specs, key=lambda name: (rows[name][0].shard, rows[name][0].begin)):
        part.append(name)
        size += specs[name].nbytes
        if size >= _AT_A_TIME:
            yield part
            part, size = [], 0
    if part:
        yield part
