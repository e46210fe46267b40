"""Train on a directory of text, streamed from where it lies, on any number of processes: killed and started again, on
more or fewer of them, every sample is trained on exactly once an epoch.

    python examples/data/train.py DIR --root ROOT --epochs 2
    hyperpod-kit data verify-ledger ROOT/ledger
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex, padded
from hyperpod_kit.data.index.build import build_index

LENGTH = 64


def tokens(line: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes as tokens, padded to one length."""
    found, mask = padded(list(line.encode()), LENGTH, 0)
    return torch.from_numpy(found), torch.from_numpy(mask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="directory with *.txt")
    parser.add_argument("--root", required=True, help="checkpoints, and the ledger")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0

    # One process makes the index, before the others need it; later starts find it and read no file.
    index_folder = os.path.join(args.root, "index")
    if rank == 0:
        build_index([args.data], index_folder)
    if dist.is_initialized():
        dist.barrier()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 256))
    net = torch.nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with Manager(os.path.join(args.root, "checkpoints"), every=10) as manager:
        loader = ElasticLoader(
            IndexedDataset(SampleIndex.open(index_folder), transform=tokens),
            args.batch,
            num_workers=args.workers,
            ledger=os.path.join(args.root, "ledger"),
            launch=f"start-{manager.epoch}",
        )
        state = State(model, optimizer, loader=loader)  # the position is committed with the weights
        step = manager.restore(state).next_step
        for epoch in range(loader.epoch, args.epochs):
            loader.set_epoch(epoch)
            for text, mask in loader:
                loss = torch.nn.functional.cross_entropy(
                    net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten(), reduction="none"
                )
                loss = (loss * mask[:, 1:].flatten()).sum() / mask.sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if rank == 0:  # before the save: a step that is restored has said its loss, wherever it was killed
                    print(f"epoch {epoch} step {step} loss {loss.item()}", flush=True)
                manager.step(step, state)
                step += 1
        manager.save(step - 1, state, on_busy="wait")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
