"""FSDP2 with torchao's 8-bit AdamW, or with its float8 training and all-gather, and another default device around all
of it.

torchrun --nproc-per-node N tests/gpu/low_precision.py --output OUTPUT [--device cpu] [--float8] [--overlap]
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hyperpod_kit.checkpoint import Manager, State

STEPS = 30
WIDTH = 128


def build(device: str, *, float8: bool) -> tuple[Any, Any]:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(2 * WIDTH, WIDTH)).to(device)
    if float8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=device == "cpu")
        convert_to_float8_training(model, config=config)
    fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)))
    if float8:
        return model, torch.optim.AdamW(model.parameters(), lr=0.003)
    from torchao.optim import AdamW8bit

    return model, AdamW8bit(model.parameters(), lr=0.003)


def plain_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """This rank's part of a tensor, or the tensors that it is made of."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if type(local) in (torch.Tensor, torch.nn.Parameter) or not hasattr(local, "__tensor_flatten__"):
        yield local.detach()
        return
    for name in local.__tensor_flatten__()[0]:
        yield from plain_parts(getattr(local, name))


def digest(model: Any, optimizer: Any) -> str:
    made = hashlib.sha256()
    states = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    for tensor in [*model.state_dict().values(), *states]:
        for part in plain_parts(tensor):
            made.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--float8", action="store_true")
    parser.add_argument("--overlap", action="store_true")
    args = parser.parse_args()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.set_default_device(args.device)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank = dist.get_rank()
    model, optimizer = build(args.device, float8=args.float8)
    state = State(model, optimizer)
    torch.manual_seed(100 + rank)
    with Manager(os.environ["ROOT"], overlap=args.overlap) as manager:
        start = manager.restore(state).next_step
        with (args.output / f"losses-{rank}.txt").open("a", buffering=1) as losses:
            for step in range(start, STEPS):
                chance = torch.Generator("cpu").manual_seed(1000 * step + rank)
                batch = torch.randn(32, WIDTH, generator=chance, device="cpu").to(args.device)
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.write(f"{step} {loss.item().hex()}\n")
                manager.save(step, state, on_busy="wait")
    (args.output / f"weights-{rank}").write_text(digest(model, optimizer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
