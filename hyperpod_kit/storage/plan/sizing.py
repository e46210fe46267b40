"""How many bytes a checkpoint has, in how many files, and what that needs of shared memory and of parts."""

from __future__ import annotations

import math
from typing import NamedTuple

from hyperpod_kit.storage.plan.facts import BYTES_PER_PARAMETER, GIB, JobFacts

MIB = 2**20
MAX_PARTS = 10_000
"""Of one multipart upload: S3's limit, and Mountpoint's."""

DEFAULT_PART_MIB = 8
"""Mountpoint's --write-part-size where nothing is said: a file of 78.1 GiB at most."""

SLOTS = 2
"""Captures that our engine holds in shared memory for each rank."""


class CheckpointSize(NamedTuple):
    """`model`, `optimizer`: bytes of the whole; `files`: that are written at once; `file`: bytes of the largest;
    `rank`: bytes of a rank's state; `shared_memory`: bytes of /dev/shm that each node needs, 0 where none is used;
    `part_mib`: the least part size that lets Mountpoint hold `file`."""

    model: float
    optimizer: float
    files: int
    file: float
    rank: float
    shared_memory: float
    part_mib: int

    @property
    def total(self) -> float:
        return self.model + self.optimizer


def checkpoint_size(facts: JobFacts) -> CheckpointSize:
    """Compute the size of one checkpoint of the job.

    A full one is two files, of model and optimizer, as in the seeds' table.
    """
    of_model, of_optimizer = BYTES_PER_PARAMETER[(facts.dtype, facts.optimizer)]
    model, optimizer = facts.parameters * of_model, facts.parameters * of_optimizer
    if facts.custom is not None:
        model, optimizer = facts.parameters * facts.custom, 0.0
    total = model + optimizer
    rank = total / facts.ranks
    if facts.writer.is_sharded:
        file, files = rank, facts.ranks
    else:
        file, files = max(model, optimizer), 1
    shared_memory = 0.0
    if not facts.writer.blocks_training:
        shared_memory = SLOTS * rank * facts.ranks / facts.nodes
    return CheckpointSize(model, optimizer, files, file, rank, shared_memory, min_part_mib(file))


def min_part_mib(file_bytes: float) -> int:
    """Compute the least whole number of MiB, 8 or more, of which 10,000 hold `file_bytes`."""
    return max(DEFAULT_PART_MIB, math.ceil(file_bytes / MAX_PARTS / MIB))


def max_file_bytes(part_size_mib: int) -> float:
    """Compute the bytes of the largest file with parts of so many MiB: 78.1 GiB with 8."""
    return float(MAX_PARTS * part_size_mib * MIB)


def max_open_writers(memory_bytes: float, part_size_mib: int, read_part_size_mib: int = DEFAULT_PART_MIB) -> int:
    """Compute how many files Mountpoint 1.24 lets be open for writing with `memory_bytes`.

    The next open() fails with ENOMEM. (memory - max(128 MiB, memory / 8) - read part) / write part: Mountpoint's
    doc/CONFIGURATION.md.
    """
    return max(
        0, int((memory_bytes - max(128 * MIB, memory_bytes / 8) - read_part_size_mib * MIB) // (part_size_mib * MIB))
    )


def format_bytes(value: float) -> str:
    """Format bytes for a person."""
    if value >= 1024 * GIB:
        return f"{value / GIB / 1024:.2f} TiB"
    if value >= GIB:
        return f"{value / GIB:.2f} GiB"
    return f"{value / MIB:.1f} MiB"
