"""Train on one file after another, streamed from where it lies: all ranks share each file, and a run that was killed
goes on in the middle of it, on any number of processes.

    python examples/data/by_file.py DIR --root ROOT
    torchrun --nproc-per-node 2 examples/data/by_file.py DIR --root ROOT
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.data import ElasticLoader, FileOrder, IndexedDataset, SampleIndex
from hyperpod_kit.data.index.build import build_index


def length(line: str) -> tuple[float, float]:
    """What a line is, for this model: its length, and how many spaces it has."""
    return len(line) / 100, line.count(" ") / 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="directory with *.txt")
    parser.add_argument("--root", required=True, help="checkpoints, index and ledger")
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    index_folder = os.path.join(args.root, "index")
    if rank == 0:
        build_index([args.data], index_folder)
    if dist.is_initialized():
        dist.barrier()
    index = SampleIndex.open(index_folder)

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    net = torch.nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = FileOrder(index, seed=0)
    with Manager(os.path.join(args.root, "checkpoints"), every=5) as manager:
        loader = ElasticLoader(
            IndexedDataset(index, transform=length),
            8,
            order=order,
            num_workers=2,
            ledger=os.path.join(args.root, "ledger"),
            launch=f"start-{manager.epoch}",
        )
        state = State(model, optimizer, loader=loader)
        step, file = manager.restore(state).next_step, -1
        for epoch in range(loader.epoch, args.epochs):
            loader.set_epoch(epoch)
            before = loader.position
            for x, y in loader:
                if order.file_at(before) != file and rank == 0:
                    file = order.file_at(before)
                    print(f"epoch {epoch} step {step} {index.file(file).path}", flush=True)
                loss = torch.nn.functional.mse_loss(net(x.float()[:, None]), y.float()[:, None])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.step(step, state)
                step, before = step + 1, loader.position
        manager.save(step - 1, state, on_busy="wait")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
