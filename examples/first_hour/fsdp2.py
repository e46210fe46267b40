"""A training script of one's own with FSDP2, on CPUs and gloo: torchrun --nproc-per-node 2 fsdp2.py."""

import os
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from hyperpod_kit.checkpoint import Manager, State

STEPS = int(os.environ.get("STEPS", "120"))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    manager = Manager(os.environ.get("HPK_CHECKPOINT_ROOT", "run1"), every=10)
    state = State(model, optimizer)
    first = manager.restore(state).next_step
    print(f"rank {rank} pid {os.getpid()} begins at step {first}", flush=True)
    for step in range(first, STEPS):
        batch = torch.randn(32, 64, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = torch.nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        manager.step(step, state)
        time.sleep(0.05)  # a model of this size would be done before anybody can kill it
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    manager.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
