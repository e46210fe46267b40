"""Whether shared memory can ever hold the slots: asked by all ranks together, before a byte is restored or trained.

Docker and podman give a container 64 MB of /dev/shm where nobody asks for more.
"""

from __future__ import annotations

import math
import os
import socket
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.codec import sharding, subclasses
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.errors import NotEnoughSharedMemory
from hyperpod_kit.untrusted.text import counted


class _RankCapacity(NamedTuple):
    """A rank's machine, the bytes that it needs for one save, and the shared memory's bytes there."""

    host: str
    need: int
    capacity: int


def min_save_bytes(model: torch.nn.Module | None, world: int) -> int:
    """Return the bytes that this rank will at least hold of a model for one save, whichever of its
    replicas saves what. What the optimizer adds is not known before it has made a step. Ranks
    outside of a tensor's mesh are taken to hold copies of it on sub-meshes of theirs: whether they
    do is agreed later, and a job that has room must not be refused."""
    if model is None:
        return 0
    total = 0.0
    for tensor in (*model.parameters(), *model.buffers()):
        if sharding.is_dtensor(tensor):
            sharded: Any = tensor
            mesh = sharded.device_mesh
            replicated = [dim for dim, placement in enumerate(sharded.placements) if not placement.is_shard()]
            copies = math.prod(mesh.size(dim) for dim in replicated) * max(1, world // mesh.size())
            total += subclasses.nbytes(sharding.unwrap_dtensor(tensor)) / copies
        else:
            total += subclasses.nbytes(tensor) / world
    return int(total)


def require_room_for_slots(ranks: Ranks, folder: str, model: torch.nn.Module | None, slots: int) -> None:
    """Raise NotEnoughSharedMemory, on all ranks, when the shared memory of a machine can never hold
    the slots of its ranks. A collective."""
    facts = os.statvfs(folder)
    local_capacity = _RankCapacity(
        socket.gethostname(), min_save_bytes(model, ranks.world), facts.f_blocks * facts.f_frsize
    )
    capacities = [_RankCapacity(*room) for room in ranks.gather(tuple(local_capacity))]
    hosts = list(dict.fromkeys(room.host for room in capacities))
    for host in hosts:
        here = [room for room in capacities if room.host == host]
        capacity = min(room.capacity for room in here)
        need = slots * sum(room.need for room in here)
        if need > capacity:
            where = ""
            if len(hosts) > 1:
                where = f" on {host}"
            raise NotEnoughSharedMemory(
                f"{shm_paths.shared_memory_root()}{where} holds {capacity / 1e6:.0f} MB, and at least "
                f"{need / 1e6:.0f} MB, plus the optimizer's state, are needed for {counted(slots, 'slot')} of "
                f"{counted(len(here), 'rank')}",
                hint=shm_slots.shared_memory_hint(4 * need),
            )
