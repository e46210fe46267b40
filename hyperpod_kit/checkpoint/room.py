"""Whether shared memory can ever hold the slots: asked by all ranks together, before a byte is restored or trained.

Docker and podman give a container 64 MB of /dev/shm where nobody asks for more.
"""

from __future__ import annotations

import math
import os
import socket
from typing import Any

import torch

from hyperpod_kit.checkpoint import sharding, subclasses
from hyperpod_kit.checkpoint.agent import places, shm_slots
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.errors import NotEnoughSharedMemory


def at_least(model: torch.nn.Module | None, world: int) -> int:
    """Bytes that this rank will have to hold of a model for one save, whoever of its replicas saves what. What the
    optimizer adds is not known before it has made a step."""
    if model is None:
        return 0
    total = 0.0
    for tensor in (*model.parameters(), *model.buffers()):
        if sharding.is_dtensor(tensor):
            sharded: Any = tensor
            mesh = sharded.device_mesh
            copies = math.prod(mesh.size(dim) for dim, one in enumerate(sharded.placements) if not one.is_shard())
            total += subclasses.nbytes(sharding.holder(tensor)) / copies
        else:
            total += subclasses.nbytes(tensor) / world
    return int(total)


def check(ranks: Ranks, folder: str, model: torch.nn.Module | None, slots: int) -> None:
    """A collective. Raises NotEnoughSharedMemory, on all ranks, when those of a machine can never have their slots."""
    facts = os.statvfs(folder)
    told = ranks.gather((socket.gethostname(), at_least(model, ranks.world), facts.f_blocks * facts.f_frsize))
    for host in dict.fromkeys(host for host, *_ in told):
        needs = [needs for name, needs, _ in told if name == host]
        holds = min(holds for name, _, holds in told if name == host)
        if slots * sum(needs) > holds:
            where = f" on {host}" if len({name for name, *_ in told}) > 1 else ""
            raise NotEnoughSharedMemory(
                f"{places.base()}{where} holds {holds / 1e6:.0f} MB, and {slots} slots of {len(needs)} ranks need at "
                f"least {slots * sum(needs) / 1e6:.0f} MB and what the optimizer adds",
                hint=shm_slots.larger(4 * slots * sum(needs)),
            )
