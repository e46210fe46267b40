"""Trains with parameters or moments of low precision under FSDP2, and saves; or restores that on any number of ranks.

    torchrun --nproc-per-node N tests/zoo/resharded.py ROOT {save|restore} FILE [--float8]

FILE gets a digest of all weights and moments as a whole.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import Manager, State
from tests.gpu.low_precision import WIDTH, build, plain_parts
from tests.zoo.packages import leave_uncompiled


def whole(tensor: Any) -> torch.Tensor:
    """What all ranks have of it: moments of eight bits as the numbers that they stand for."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    part = local.dequantize() if hasattr(local, "dequantize") and hasattr(local, "codes") else next(plain_parts(local))
    if not hasattr(tensor, "to_local"):
        return part.detach()
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part.detach().cpu())
    return torch.cat(parts)


def digest(model: Any, optimizer: Any) -> str:
    made = hashlib.sha256()
    moments = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    for tensor in [*model.state_dict().values(), *moments]:
        made.update(whole(tensor).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def train(model: Any, optimizer: Any, steps: int) -> None:
    for number in range(steps):
        torch.manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("work", choices=["save", "restore"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--float8", action="store_true")
    args = parser.parse_args()
    leave_uncompiled()
    dist.init_process_group("gloo")
    model, optimizer = build("cpu", float8=args.float8)
    state = State(model, optimizer)
    with Manager(args.root) as manager:
        found = manager.restore(state)
        if args.work == "save":
            train(model, optimizer, 3)
            assert manager.save(2, state, on_busy="wait").wait("durable", 120)
        seen = digest(model, optimizer)
        if args.work == "restore":
            assert found.next_step == 3
            train(model, optimizer, 2)
    if dist.get_rank() == 0:
        args.file.write_text(seen)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
