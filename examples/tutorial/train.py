"""A training loop with checkpoints. Lines that end in `# +` are what hyperpod-kit adds: it trains without them."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hyperpod_kit.checkpoint import Manager, State  # +

STEPS = int(os.environ.get("STEPS", "40"))
ROOT = os.environ.get("HPK_CHECKPOINT_ROOT") or os.environ.get("ROOT", "./checkpoints/tutorial")  # +


def batch(step: int, rank: int) -> torch.Tensor:
    """The data of a step follows from its number alone, so a resumed run sees what an undisturbed one would."""
    return torch.randn(32, 64, generator=torch.Generator().manual_seed(1000 * step + rank))


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    first = 0
    manager = Manager(ROOT, run="tutorial")  # +
    history: dict[str, list[float]] = {"losses": []}  # +
    state = State(model, optimizer, schedule=schedule, extra=history)  # +
    found = manager.restore(state)  # +
    first = found.next_step  # +
    print(f"rank {rank}: begins at step {first}: {found}", flush=True)  # +

    for step in range(first, STEPS):
        data = batch(step, rank)
        loss = torch.nn.functional.mse_loss(model(data), data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        history["losses"].append(loss.item())  # +
        if step % 10 == 9:  # +
            manager.save(step, state, on_busy="wait" if step == STEPS - 1 else "skip")  # +
        if rank == 0 and step % 10 == 9:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    if not manager.close():  # +
        raise SystemExit("the last checkpoint is not on storage")  # +
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
