"""Whole tensors of a committed checkpoint, read and proved by one process alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp import reshard, sharing
from hyperpod_kit.checkpoint.dcp.slices import SliceRequests
from hyperpod_kit.checkpoint.reason import Verdict
from hyperpod_kit.checkpoint.repository.rows import Rows
from hyperpod_kit.errors import CheckpointError, StorageUnreadable


def read(opened: reshard.Attempt, rows: Rows, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """By their names. Raises StorageUnreadable, DigestUnavailable, CheckpointError for what is not as it was written
    and for a name that is in no shard."""
    requests = SliceRequests(rows)
    tensors = {name: requests.add_whole(name) for name in sorted(names)}
    ranks = Ranks(alone=True)
    work = sharing.work_of(ranks, requests, opened.manifest.chunk)
    problem = reshard.carry_out(ranks, opened, work, requests)
    if problem is not None and problem.verdict is Verdict.UNREAD:
        raise StorageUnreadable(
            opened.name,
            problem.words,
            hint=f"--attempt names an older one: hyperpod-kit checkpoint ls {opened.store.url}",
        )
    if problem is not None:
        raise CheckpointError(problem.words)
    return tensors
