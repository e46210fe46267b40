"""Two ranks of one GPU under DistributedDataParallel, over gloo: NCCL wants a device for each rank.

torchrun --nproc-per-node 2 tests/gpu/trainer.py --output OUTPUT [--overlap] [--nccl]
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import Manager, State

STEPS = 40


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--nccl", action="store_true", help="one rank: NCCL's group, and FSDP2 over it")
    parser.add_argument("--overlap", action="store_true")
    args = parser.parse_args()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl" if args.nccl else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    layers = [torch.nn.Linear(256, 512), torch.nn.Dropout(0.1), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 256)]
    net = torch.nn.Sequential(*layers).cuda()
    model: torch.nn.Module
    if args.nccl:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=init_device_mesh("cuda", (dist.get_world_size(),)))
        model = net
    else:
        model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    state = State(model, optimizer)
    torch.manual_seed(100 + rank)
    with Manager(os.environ["ROOT"], overlap=args.overlap) as manager:
        start = manager.restore(state).next_step
        with (args.output / f"losses-{rank}.txt").open("a", buffering=1) as said:
            for step in range(start, STEPS):
                batch = torch.randn(64, 256, generator=torch.Generator().manual_seed(1000 * step + rank)).cuda()
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                said.write(f"{step} {loss.item().hex()}\n")
                manager.save(step, state, on_busy="wait")
    made = hashlib.sha256()
    for value in model.state_dict().values():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        made.update(whole.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    if rank == 0:
        (args.output / "weights").write_text(made.hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
